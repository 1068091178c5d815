"""LLM: offline generation from Python.

>>> llm = LLM("model.gguf")
>>> llm.generate("Once upon a time", SamplingParams(max_tokens=20))[0].outputs[0].text
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pyvt.config import EngineConfig, engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.input_processor import Message, Prompt
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import RequestError
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.tokenizer.base import RenderedPrompt, Tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model; not safe for two threads.

    Args:
        model: folder of a checkpoint or path of a ``.gguf`` file; ``pyvt.hub.pull`` returns one.
        settings: fields of ``EngineConfig`` and of its parts, by name: ``block_size=32``.
    """

    def __init__(self, model: str | Path | EngineConfig, **settings: Any) -> None:
        path = str(model) if isinstance(model, Path) else model
        config = path if isinstance(path, EngineConfig) else engine_config(path, **settings)
        self._attach(build_engine(config))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> "LLM":
        """Return an LLM over an engine that was built elsewhere."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._next_id = 0
        self._is_stepping = False
        self._mailboxes: dict[str, deque[RequestOutput]] = {}
        self._dropped: list[str] = []

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.input_processor.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
    ) -> list[RequestOutput]:
        """Complete prompts; the results stand in the order of the prompts.

        Args:
            prompts: one prompt or several; a prompt is text or a list of token ids.
            sampling_params: one for all, or one for each prompt; None: the model's own defaults.

        Raises:
            RequestError: a prompt cannot be served; then none of them is started.
            EngineDeadError: the engine has stopped.
        """
        return self._run(_prompt_list(prompts), sampling_params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several with the model's own chat template.

        Args:
            messages: a list of ``{"role": …, "content": …}``, or a list of such lists.
            sampling_params: as in ``generate``.
            tools: descriptions of functions, handed to the template.
            add_generation_prompt: end with the head of an assistant's message.
            chat_template_kwargs: more variables of the template, such as ``enable_thinking``.

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
        return self._run(rendered, sampling_params)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "TextStream":
        """Complete a prompt, or answer a conversation, and hand out what is new as it comes.

        The request is checked and queued by the call itself. Several streams may be read in turns;
        they run in one batch.

        Raises:
            RequestError: the request cannot be served.
        """
        if _is_conversation(prompt):
            prompt = self.engine.input_processor.render(
                cast(Sequence[Message], prompt),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                chat_template_kwargs=chat_template_kwargs,
            )
        request_id = self._new_id()
        params = self.engine.default_params if sampling_params is None else sampling_params
        self.engine.add_request(request_id, cast(Prompt, prompt), params, is_stream=True)
        self._mailboxes[request_id] = deque()
        return TextStream(self, request_id)

    def _run(self, prompts: Sequence[Prompt], sampling_params: Params) -> list[RequestOutput]:
        """Run requests to their ends; an exception, Ctrl-C too, aborts those that are left."""
        params = _params_list(sampling_params, len(prompts), self.engine.default_params)
        request_ids = [self._new_id() for _ in prompts]
        self.engine.add_requests(list(zip(request_ids, prompts, params, strict=True)))
        self._mailboxes |= {request_id: deque() for request_id in request_ids}
        try:
            return [self._next_output(request_id) for request_id in request_ids]
        finally:
            self._close(request_ids)

    def _new_id(self) -> str:
        self._next_id += 1
        return f"llm-{self._next_id}"

    def _next_output(self, request_id: str) -> RequestOutput:
        """Return the next output of a request, stepping the engine until there is one."""
        mailbox = self._mailboxes[request_id]
        while not mailbox:
            self._step()
        return mailbox.popleft()

    def _step(self) -> None:
        self._close(self._dropped)
        self._dropped = []
        self._is_stepping = True
        try:
            outputs = self.engine.step()
        finally:
            self._is_stepping = False
        for output in outputs:
            if output.request_id in self._mailboxes:
                self._mailboxes[output.request_id].append(output)

    def _close(self, request_ids: Sequence[str]) -> None:
        """Abort requests that are unfinished and forget their outputs."""
        self.engine.abort(request_ids)
        for request_id in request_ids:
            self._mailboxes.pop(request_id, None)

    def _drop(self, request_id: str) -> None:
        """Close a request whose stream was dropped, which may happen in the middle of a step."""
        if self._is_stepping:
            self._dropped.append(request_id)
        else:
            self._close([request_id])


class TextStream:
    """The outputs of one request, each with what is new; the last one is ``finished``.

    Closing, dropping or interrupting the stream aborts the request and frees its memory; the LLM
    stays usable.
    """

    def __init__(self, llm: LLM, request_id: str) -> None:
        self._llm = llm
        self._request_id = request_id
        self._is_open = True

    def __iter__(self) -> Iterator[RequestOutput]:
        return self

    def __next__(self) -> RequestOutput:
        if not self._is_open:
            raise StopIteration
        try:
            output = self._llm._next_output(self._request_id)
        except BaseException:
            self.close()
            raise
        if output.finished:
            self.close()
        return output

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort the request where it is unfinished; may be called again."""
        if self._is_open:
            self._is_open = False
            self._llm._close([self._request_id])

    def __del__(self) -> None:
        if self._is_open:
            self._is_open = False
            self._llm._drop(self._request_id)


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
