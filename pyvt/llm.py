"""LLM: offline generation from Python.

>>> llm = LLM("model.gguf")
>>> llm.generate("Once upon a time", SamplingParams(max_tokens=20))[0].outputs[0].text
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from pyvt.config import EngineConfig, engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.engine_thread import EngineThread
from pyvt.engine.events import Event, EventChannel, event_bound, take_event
from pyvt.engine.input_processor import Message, Prompt
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput, unit_vector
from pyvt.plain_numbers import plain
from pyvt.sampling_params import POOLINGS, SamplingParams
from pyvt.tokenizer.base import RenderedPrompt, Tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model; several threads may use it at once.

    The engine runs on a thread of its own, which ends with ``shutdown``, when the LLM is dropped,
    or when the program ends.

    Args:
        model: folder of a checkpoint, path of a ``.gguf`` file, or a name as the commands take it,
            which is pulled where it is not on this machine.
        settings: fields of ``EngineConfig`` and of its parts, by name: ``block_size=32``.
    """

    def __init__(self, model: str | Path | EngineConfig, **settings: Any) -> None:
        path = str(model) if isinstance(model, Path) else model
        config = path if isinstance(path, EngineConfig) else engine_config(path, **settings)
        self._attach(build_engine(config))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> "LLM":
        """Return an LLM over an engine that was built elsewhere, and belongs to it from now on."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.thread = EngineThread(engine)
        self._numbers = itertools.count(1)
        weakref.finalize(self, self.thread.shutdown, timeout_s=0)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.input_processor.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """Return ``tokenizer``; the name that programs for vLLM call."""
        return self.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; the results stand in the order of the prompts.

        Args:
            prompts: one prompt or several; a prompt is text, a list of token ids, or an object with
                ``prompt`` or ``prompt_token_ids``.
            sampling_params: one for all, or one for each prompt; None: the model's own defaults.
            priority: the lower, the sooner; of all of them.
            timeout_s: seconds from now after which a request is aborted, with the text so far.
            progress: show a bar on stderr.
            use_tqdm: the same, by the name that programs for vLLM give it.

        Raises:
            RequestError: a prompt cannot be served; then none of them is started.
            EngineDeadError: the engine has stopped.
        """
        return self._run(
            _prompt_list(prompts),
            sampling_params,
            progress=progress or bool(use_tqdm),
            priority=priority,
            timeout_s=timeout_s,
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several with the model's own chat template.

        Args:
            messages: a list of ``{"role": …, "content": …}``, or a list of such lists.
            sampling_params: as in ``generate``.
            tools: descriptions of functions, handed to the template.
            add_generation_prompt: end with the head of an assistant's message.
            chat_template_kwargs: more variables of the template, such as ``enable_thinking``.
            priority, timeout_s, progress, use_tqdm: as in ``generate``.

        Raises:
            RequestError: as in ``generate``; or the model has no template, or it refuses.
        """
        rendered = [
            self.engine.input_processor.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _conversation_list(messages)
        ]
        return self._run(
            rendered,
            sampling_params,
            progress=progress or bool(use_tqdm),
            priority=priority,
            timeout_s=timeout_s,
        )

    def encode(self, prompt: Prompt | Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of a prompt, or of a conversation, as ``generate`` would run it.

        Raises:
            RequestError: it cannot be rendered or tokenised.
        """
        processor = self.engine.input_processor
        if _is_conversation(prompt):
            return processor.tokenize(processor.render(cast(Sequence[Message], prompt)))
        return processor.tokenize(cast(Prompt, prompt))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str = "last",
        is_unit: bool = True,
        progress: bool = False,
    ) -> list[tuple[float, ...]]:
        """Return a vector for each prompt, from the model's hidden states after its last norm.

        Args:
            prompts: one prompt or several; a prompt is text or a list of token ids.
            pooling: ``last`` takes that of the last token, ``mean`` the mean of all.
            is_unit: scale each vector to length 1.
            progress: show a bar on stderr.

        Raises:
            RequestError, EngineDeadError: as in ``generate``.
        """
        if pooling not in POOLINGS:
            raise RequestError(
                f"[embed] pooling: expected {' or '.join(POOLINGS)}, got {pooling!r}",
                param="pooling",
            )
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_pooling=pooling)
        vectors = []
        for output in self._run(_prompt_list(prompts), params, progress=progress):
            if output.embedding is None:
                raise EngineDeadError(f"[engine] request: {output.error or 'was aborted'}")
            vectors.append(unit_vector(output.embedding) if is_unit else output.embedding)
        return vectors

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> "TextStream":
        """Complete a prompt, or answer a conversation, and hand out what is new as it comes.

        The request is checked and queued by the call itself. Several streams run in one batch,
        whether they are read or not.

        Raises:
            RequestError: the request cannot be served.
            EngineDeadError: the engine has stopped.
        """
        if _is_conversation(prompt):
            prompt = self.engine.input_processor.render(
                cast(Sequence[Message], prompt),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                chat_template_kwargs=chat_template_kwargs,
            )
        request = self.engine.process(
            self._new_id(),
            cast(Prompt, prompt),
            self.engine.default_params if sampling_params is None else sampling_params,
            priority=priority,
            timeout_s=timeout_s,
        )
        stream = TextStream(self, request)
        self.thread.submit([request], stream.channel, is_stream=True)
        return stream

    def shutdown(self, *, is_drain: bool = False, timeout_s: float | None = None) -> bool:
        """End the engine's thread; see ``EngineThread.shutdown``. May be called again."""
        return self.thread.shutdown(is_drain=is_drain, timeout_s=timeout_s)

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params,
        *,
        progress: bool,
        **settings: Any,
    ) -> list[RequestOutput]:
        """Run requests to their ends; an exception, Ctrl-C too, aborts those that are left."""
        params = _params_list(sampling_params, len(prompts), self.engine.default_params)
        requests = [
            self.engine.process(self._new_id(), prompt, own, **settings)
            for prompt, own in zip(prompts, params, strict=True)
        ]
        self.engine.check_admissible(requests)
        events: SimpleQueue[Event] = SimpleQueue()
        outputs: dict[str, RequestOutput] = {}
        with self._cancelling(requests), _bar(len(requests) if progress else 0) as advance:
            size = self.thread.max_requests
            for start in range(0, len(requests), size):
                self.thread.submit(
                    requests[start : start + size], events, is_stream=False, is_waiting=True
                )
            for _ in requests:
                event = take_event(events)
                if not isinstance(event, RequestOutput):
                    raise event
                outputs[event.request_id] = event
                advance(event)
        return [outputs[request.request_id] for request in requests]

    def _new_id(self) -> str:
        return f"llm-{next(self._numbers)}"

    @contextmanager
    def _cancelling(self, requests: Sequence[EngineCoreRequest]) -> Iterator[None]:
        """End the requests that are unfinished when the block is left early."""
        try:
            yield
        except BaseException:
            for request in requests:
                self.thread.cancel(request.request_id)
            raise


class TextStream:
    """The outputs of one request, each with what is new; the last one is ``finished``.

    Closing, dropping or interrupting the stream aborts the request and frees its memory after the
    step that runs; the LLM stays usable.
    """

    def __init__(self, llm: LLM, request: EngineCoreRequest) -> None:
        self.request_id = request.request_id
        self.channel = EventChannel(event_bound(request))
        self._llm = llm
        self._is_open = True

    def __iter__(self) -> Iterator[RequestOutput]:
        return self

    def __next__(self) -> RequestOutput:
        if not self._is_open:
            raise StopIteration
        try:
            event = self.channel.get()
        except BaseException:
            self.close()
            raise
        if not isinstance(event, RequestOutput):
            self._is_open = False
            raise event
        if event.finished:
            self._is_open = False
        return event

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Abort the request soon; what is left, and a last output that says so, can be read.

        A signal handler may call it.
        """
        self._llm.thread.cancel(self.request_id)

    def close(self) -> None:
        """Abort the request where it is unfinished and read no more; may be called again."""
        if self._is_open:
            self._is_open = False
            self.cancel()

    def __del__(self) -> None:
        self.close()


@contextmanager
def _bar(num_requests: int) -> Iterator[Callable[[RequestOutput], None]]:
    """Show a bar on stderr that moves with each finished request; none for no requests."""
    if not num_requests:
        yield lambda _: None
        return
    # Only a run with a bar pays for rich.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=num_requests, speed=0.0)
        num_tokens = 0

        def advance(output: RequestOutput) -> None:
            nonlocal num_tokens
            num_tokens += output.metrics.num_generated_tokens
            elapsed_s = bar.tasks[0].elapsed
            bar.update(task, advance=1, speed=num_tokens / elapsed_s if elapsed_s else 0.0)

        yield advance


def _params_list(params: Params, count: int, default: SamplingParams) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [default if params is None else params] * count
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise _bad_params("SamplingParams or a list of them", type(params).__name__)
    if len(params) != count:
        raise _bad_params(f"{count}, one for each prompt", str(len(params)))
    return list(params)


def _bad_params(expected: str, got: str) -> RequestError:
    return RequestError(
        f"[request] sampling_params: expected {expected}, got {got}",
        param="sampling_params",
        code="invalid_value",
    )


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    prompts = plain(prompts)
    if isinstance(prompts, (str, RenderedPrompt)) or not isinstance(prompts, Sequence):
        return [cast(Prompt, prompts)]
    is_ids = bool(prompts) and isinstance(prompts[0], int)
    return [cast(Sequence[int], prompts)] if is_ids else cast(Sequence[Prompt], prompts)


def _conversation_list(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    is_batch = isinstance(messages, Sequence) and bool(messages)
    is_batch = is_batch and isinstance(messages[0], Sequence) and not isinstance(messages[0], str)
    return list(cast(Any, messages)) if is_batch else [cast(Sequence[Message], messages)]


def _is_conversation(prompt: object) -> bool:
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str) and bool(prompt)
    return is_list and isinstance(cast(Sequence[object], prompt)[0], Mapping)
