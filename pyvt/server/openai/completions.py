"""POST /v1/completions: one prompt or several, as text or token ids."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.engine.input_processor import Prompt
from pyvt.errors import PyvtError, RequestError
from pyvt.sampling_params import SamplingParams
from pyvt.server.answer.events import Content
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.errors import WireException, body_of, renamed, request_error
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, Step, interleaved, usage_of
from pyvt.server.openai.chat_wire import Beside
from pyvt.server.openai.events import data_event, error_event
from pyvt.server.openai.logprobs import TextOffsets, completion_logprobs, prompt_logprobs
from pyvt.server.openai.schema import CompletionRequest, QueueFields
from pyvt.server.sampling import sampling_params
from pyvt.server.sse import DONE, until_client_leaves
from pyvt.server.state import PART_MARK, ServerState, gathered, request_id_of, state_of
from pyvt.server.structure import form_names, text_form

# What OpenAI and vLLM take where a completion names none.
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256


async def completions(request: Request) -> ASGIApp:
    """Complete prompts, whole or as a stream; choices stand in the order of the prompts."""
    state = state_of(request)
    asked = checked(CompletionRequest, await state.body(request))
    model = state.model_name(asked.model)
    params = _params(state, asked)
    response_id = f"cmpl-{request_id_of(request)}"
    prompts = prompt_list(asked.prompt, "prompt")
    generations = await start_all(
        request,
        asked,
        params,
        prompts,
        response_id,
        is_stream=bool(asked.stream),
        names=form_names(asked),
    )
    shape = CompletionShape(
        response_id=response_id,
        created=int(time.time()),
        model=model,
        num_top=asked.logprobs,
        echoes=await _echoes(state, asked, generations),
        is_prompt_only=bool(asked.echo) and asked.max_tokens == 0,
        has_token_ids=bool(asked.return_token_ids),
        warnings=asked.warnings(),
    )
    if asked.stream:
        return state.event_stream(_chunks(state, asked, generations, shape))
    work = gathered([generation.run() for generation in generations])
    await until_client_leaves(request.receive, work)
    return Response(body_of(shape.whole(generations)), media_type="application/json")


def _params(state: ServerState, asked: CompletionRequest) -> SamplingParams:
    if asked.suffix:
        raise request_error(
            "[request] suffix: expected none, text is only added at the end",
            param="suffix",
            code="unsupported_parameter",
        )
    max_tokens = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    if asked.ignore_eos is None and asked.min_tokens is not None:
        max_tokens = max(max_tokens, asked.min_tokens) if asked.max_tokens is None else max_tokens
    own = state.ready_llm().engine.default_params
    params = sampling_params(
        asked,
        own,
        # The engine generates at least one token; with echo alone it is not told.
        max_tokens=1 if asked.echo and max_tokens == 0 else max_tokens,
        logprobs=asked.logprobs,
        structured_outputs=text_form(asked),
    )
    if asked.echo and asked.logprobs is not None:
        params = replace(params, prompt_logprobs=asked.logprobs)
    return params


def prompt_list(
    prompt: str | Sequence[int] | Sequence[str | list[int]], param: str
) -> list[Prompt]:
    """Return the prompts that a field holds: one text, one list of ids, or several of them.

    Raises:
        WireException: both forms at once, none or too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    several = [item for item in prompt if not isinstance(item, int)]
    if not 1 <= len(several) + bool(ids) <= MAX_PROMPTS or (ids and several):
        raise request_error(
            f"[request] {param}: expected a text, token ids, or a list of 1 to {MAX_PROMPTS} such",
            param=param,
            code="invalid_value",
        )
    return [ids] if ids else list(several)


async def start_all(
    request: Request,
    asked: QueueFields,
    params: SamplingParams,
    prompts: Sequence[Prompt],
    response_id: str,
    *,
    is_stream: bool,
    names: Mapping[str, str] | None = None,
) -> list[Generation]:
    """Start all prompts, or none where one of them is refused.

    Errors call a field by the client's name of it where ``names`` has one.
    """
    state = state_of(request)
    generations: list[Generation] = []
    form = AnswerFormat()
    try:
        for place, prompt in enumerate(prompts):
            stream = await state.start(
                request,
                asked,
                prompt,
                params,
                request_id=f"{response_id}{PART_MARK}{place}" if len(prompts) > 1 else response_id,
                is_stream=is_stream,
            )
            generations.append(
                Generation(stream=stream, params=params, form=form, metrics=state.metrics)
            )
    except BaseException as error:
        for generation in generations:
            generation.stream.close()
        if isinstance(error, RequestError):
            raise renamed(error, names or {}) from error
        raise
    return generations


@dataclass(frozen=True, slots=True)
class _Echo:
    """What the choices of one prompt begin with; ``first`` is the text of its first token."""

    text: str
    first: str


async def _echoes(
    state: ServerState, asked: CompletionRequest, generations: Sequence[Generation]
) -> list[_Echo] | None:
    """Return the echo of each prompt, None where there is none."""
    if not asked.echo:
        return None
    llm = state.ready_llm()
    processor = llm.engine.input_processor

    def echo(prompt: Prompt) -> _Echo:
        ids = processor.tokenize(prompt)
        text = prompt if isinstance(prompt, str) else processor.tokenizer.decode(ids)
        first = processor.tokenizer.token_text(ids[0])
        # A token that the text does not begin with was added to it and takes no room in it.
        return _Echo(text, first if text.startswith(first) else "")

    return await llm.run_input(
        lambda: [echo(prompt) for prompt in prompt_list(asked.prompt, "prompt")]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the choices of one response have in common."""

    response_id: str
    created: int
    model: str
    num_top: int | None
    echoes: Sequence[_Echo] | None
    is_prompt_only: bool
    has_token_ids: bool
    warnings: Sequence[str] = ()

    @property
    def head(self) -> dict[str, Any]:
        """The fields of every body and chunk."""
        return {
            "id": self.response_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def whole(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        choices = [
            self._choice(place, index, generation)
            for place, generation in enumerate(generations)
            for index in range(len(generation.answers))
        ]
        body = {**self.head, "choices": choices, "usage": self.usage(generations)}
        told = dict.fromkeys(text for generation in generations for text in generation.warnings)
        if warnings := [*self.warnings, *told]:
            body["warnings"] = warnings
        return body

    def usage(self, generations: Sequence[Generation]) -> dict[str, Any]:
        """Return what all prompts cost so far."""
        usage = usage_of(generations)
        if self.is_prompt_only:
            usage.num_completion_tokens = 0
        return usage.openai()

    def _choice(self, place: int, index: int, generation: Generation) -> dict[str, Any]:
        answer = generation.answers[index]
        number = place * len(generation.answers) + index
        choice = self.echo(place, number, generation)
        if not self.is_prompt_only:
            choice["text"] += "".join(answer.content)
            if self.num_top is not None:
                before = 0 if self.echoes is None else len(self.echoes[place].text)
                new = completion_logprobs(answer.logprobs, self.num_top, TextOffsets(before))
                choice["logprobs"] = _appended(choice["logprobs"], new)
        choice["finish_reason"] = "length" if self.is_prompt_only else answer.finish_reason
        choice["stop_reason"] = answer.stop_reason
        assert generation.output is not None, "a finished request has an output"
        if self.has_token_ids:
            choice["token_ids"] = [] if self.is_prompt_only else answer.token_ids
            choice["prompt_token_ids"] = list(generation.output.prompt_token_ids)
        if generation.prompt_logprobs is not None and self.echoes is None:
            choice["prompt_logprobs"] = prompt_logprobs(generation.prompt_logprobs)
        return choice

    def echo(self, place: int, number: int, generation: Generation) -> dict[str, Any]:
        """Return a choice that has the prompt alone, and nothing where it is not echoed."""
        choice: dict[str, Any] = {
            "index": number,
            "text": "",
            "logprobs": None,
            "finish_reason": None,
        }
        if self.echoes is not None:
            echo = self.echoes[place]
            choice["text"] = echo.text
            if self.num_top is not None and generation.prompt_logprobs is not None:
                positions = generation.prompt_logprobs
                choice["logprobs"] = completion_logprobs(
                    positions, self.num_top, TextOffsets(), echo.first
                )
        return choice


def _appended(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """Return log probabilities of a prompt and of what follows it."""
    return after if before is None else {name: before[name] + after[name] for name in after}


class _Chunks:
    """Writes the chunks of one stream, whose choices come in turns."""

    def __init__(self, shape: CompletionShape, *, has_usage: bool) -> None:
        self.shape = shape
        self.has_usage = has_usage
        self._beside: dict[int, Beside] = {}
        self._places: dict[int, TextOffsets] = {}
        self._warnings = list(shape.warnings)
        self._told: set[str] = set()

    def step(self, place: int, step: Step, generation: Generation) -> list[dict[str, Any]]:
        """Return the chunks of what is new: the prompt once, text, the end."""
        number = place * len(generation.answers) + step.index
        chunks = []
        if number not in self._beside:
            self._beside[number] = Beside()
            if self.shape.echoes is not None:
                self._places[number] = TextOffsets(len(self.shape.echoes[place].text))
                chunks.append(self._chunk(self.shape.echo(place, number, generation)))
        if step.is_last:
            self._warnings += (w for w in generation.warnings if w not in self._told)
            self._told |= set(generation.warnings)
        if self.shape.is_prompt_only:
            return [*chunks, self._end(number, "length", None)] if step.is_last else chunks
        beside = self._beside[number]
        beside.add(step.new)
        text = "".join(event.text for event in step.events if isinstance(event, Content))
        if text:
            chunks.append(self._with(beside, self._text(number, text)))
        if step.is_last:
            reason, stop_reason = step.answer.finish_reason, step.answer.stop_reason
            chunks.append(self._with(beside, self._end(number, reason, stop_reason)))
        return chunks

    def _end(
        self, number: int, reason: str | None, stop_reason: int | str | None
    ) -> dict[str, Any]:
        chunk = self._text(number, "")
        chunk["choices"][0] |= {"finish_reason": reason, "stop_reason": stop_reason}
        return chunk

    def _with(self, beside: Beside, chunk: dict[str, Any]) -> dict[str, Any]:
        """Add the log probabilities and ids that wait to a chunk."""
        (choice,) = chunk["choices"]
        positions, token_ids = beside.take()
        if positions and self.shape.num_top is not None:
            place = self._places.setdefault(choice["index"], TextOffsets())
            choice["logprobs"] = completion_logprobs(positions, self.shape.num_top, place)
        if self.shape.has_token_ids:
            choice["token_ids"] = token_ids
        return chunk

    def _text(self, number: int, text: str) -> dict[str, Any]:
        return self._chunk({"index": number, "text": text, "logprobs": None, "finish_reason": None})

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self.shape.head, "choices": [choice]}
        if self.has_usage:
            chunk["usage"] = None
        if self._warnings:
            chunk["warnings"], self._warnings = self._warnings, []
        return chunk


async def _chunks(
    state: ServerState,
    asked: CompletionRequest,
    generations: Sequence[Generation],
    shape: CompletionShape,
) -> AsyncIterator[bytes]:
    has_usage, is_continuous = state.usage_in_stream(asked.stream_options)
    chunks = _Chunks(shape, has_usage=has_usage)
    try:
        async for place, steps in interleaved(generations):
            data = []
            for step in steps:
                for chunk in chunks.step(place, step, generations[place]):
                    if is_continuous:
                        chunk["usage"] = shape.usage(generations)
                    data.append(data_event(chunk))
            if data:
                yield b"".join(data)
        if has_usage:
            yield data_event({**shape.head, "choices": [], "usage": shape.usage(generations)})
        yield DONE
    except (PyvtError, WireException) as error:
        yield error_event(error)
