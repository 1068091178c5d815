"""POST /v1/completions: one prompt or several, as text or token ids."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.engine.input_processor import Prompt
from pyvt.errors import PyvtError
from pyvt.sampling_params import SamplingParams
from pyvt.server.answer.collector import Answer
from pyvt.server.answer.events import Content
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.errors import WireException, body_of, request_error
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, Step, interleaved, usage_of
from pyvt.server.openai.chat_wire import Beside
from pyvt.server.openai.events import data_event, error_event
from pyvt.server.openai.logprobs import completion_logprobs
from pyvt.server.openai.schema import CompletionRequest
from pyvt.server.sampling import sampling_params
from pyvt.server.sse import DONE, until_client_leaves
from pyvt.server.state import ServerState, gathered, request_id_of, state_of
from pyvt.server.structure import check_structure

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
    prompts = _prompts(asked)
    generations = await _start(state, asked, params, prompts, response_id)
    shape = CompletionShape(
        response_id=response_id,
        created=int(time.time()),
        model=model,
        num_top=asked.logprobs,
        echoes=await _echoes(state, asked, generations),
        has_token_ids=bool(asked.return_token_ids),
        warnings=asked.warnings(),
    )
    if asked.stream:
        return state.event_stream(_chunks(state, asked, generations, shape))
    work = gathered([generation.run() for generation in generations])
    await until_client_leaves(request.receive, work)
    return Response(body_of(shape.whole(generations)), media_type="application/json")


def _params(state: ServerState, asked: CompletionRequest) -> SamplingParams:
    check_structure(asked)
    if asked.suffix:
        raise request_error(
            "[request] suffix: expected none, text is only added at the end",
            param="suffix",
            code="unsupported_parameter",
        )
    max_tokens = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
    if asked.ignore_eos is None and asked.min_tokens is not None:
        max_tokens = max(max_tokens, asked.min_tokens) if asked.max_tokens is None else max_tokens
    if asked.echo and asked.logprobs is not None:
        raise request_error(
            "[request] logprobs: expected none with echo, they are not supported for prompts",
            param="logprobs",
            code="unsupported_value",
        )
    own = state.ready_llm().engine.default_params
    if max_tokens == 0 and asked.echo:
        max_tokens = 1
    return sampling_params(asked, own, max_tokens=max_tokens, logprobs=asked.logprobs)


def _prompts(asked: CompletionRequest) -> list[Prompt]:
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    several = [item for item in prompt if not isinstance(item, int)]
    if not 1 <= len(several) + bool(ids) <= MAX_PROMPTS or (ids and several):
        raise request_error(
            f"[request] prompt: expected a text, token ids, or a list of 1 to {MAX_PROMPTS} such",
            param="prompt",
            code="invalid_value",
        )
    return [ids] if ids else list(several)


async def _start(
    state: ServerState,
    asked: CompletionRequest,
    params: SamplingParams,
    prompts: Sequence[Prompt],
    response_id: str,
) -> list[Generation]:
    """Start all prompts, or none where one of them is refused."""
    generations: list[Generation] = []
    form = AnswerFormat()
    try:
        for place, prompt in enumerate(prompts):
            stream = await state.start(
                prompt,
                params,
                request_id=f"{response_id}-{place}" if len(prompts) > 1 else response_id,
                is_stream=bool(asked.stream),
                priority=asked.priority,
                timeout_s=asked.timeout_s,
            )
            generations.append(
                Generation(stream=stream, params=params, form=form, metrics=state.metrics)
            )
    except BaseException:
        for generation in generations:
            generation.stream.close()
        raise
    return generations


async def _echoes(
    state: ServerState, asked: CompletionRequest, generations: Sequence[Generation]
) -> list[str]:
    """Return the text that each prompt's choices begin with."""
    if not asked.echo:
        return [""] * len(generations)
    llm = state.ready_llm()
    tokenizer = llm.engine.input_processor.tokenizer
    prompts = _prompts(asked)
    return await llm.run_input(
        lambda: [p if isinstance(p, str) else tokenizer.decode(p) for p in prompts]  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the choices of one response have in common."""

    response_id: str
    created: int
    model: str
    num_top: int | None
    echoes: Sequence[str]
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
        choices = []
        for place, generation in enumerate(generations):
            for index, answer in enumerate(generation.answers):
                text = self.echoes[place] + "".join(answer.content)
                number = place * len(generation.answers) + index
                choice = self._choice(number, text, answer, len(self.echoes[place]))
                choice["finish_reason"] = answer.finish_reason
                choice["stop_reason"] = answer.stop_reason
                if self.has_token_ids:
                    choice["token_ids"] = answer.token_ids
                    assert generation.output is not None, "a finished request has an output"
                    choice["prompt_token_ids"] = list(generation.output.prompt_token_ids)
                choices.append(choice)
        body = {**self.head, "choices": choices, "usage": usage_of(generations).openai()}
        if self.warnings:
            body["warnings"] = list(self.warnings)
        return body

    def _choice(self, number: int, text: str, answer: Answer, offset: int) -> dict[str, Any]:
        logprobs = None
        if self.num_top is not None:
            logprobs = completion_logprobs(answer.logprobs, self.num_top, offset)
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": None}


class _Chunks:
    """Writes the chunks of one stream, whose choices come in turns."""

    def __init__(self, shape: CompletionShape, *, has_usage: bool) -> None:
        self.shape = shape
        self.has_usage = has_usage
        self._beside: dict[int, Beside] = {}
        self._num_chars: dict[int, int] = {}

    def echo(self, number: int, text: str) -> dict[str, Any]:
        """Return a chunk with the prompt."""
        self._num_chars[number] = len(text)
        return self._chunk(number, text)

    def step(self, number: int, step: Step) -> list[dict[str, Any]]:
        """Return the chunks of what is new, and of the end where it is the end."""
        beside = self._beside.setdefault(number, Beside())
        beside.add(step.new)
        text = "".join(event.text for event in step.events if isinstance(event, Content))
        chunks = [self._with(beside, self._chunk(number, text))] if text else []
        if step.is_last:
            last = self._with(beside, self._chunk(number, ""))
            last["choices"][0]["finish_reason"] = step.answer.finish_reason
            last["choices"][0]["stop_reason"] = step.answer.stop_reason
            chunks.append(last)
        return chunks

    def _with(self, beside: Beside, chunk: dict[str, Any]) -> dict[str, Any]:
        """Add the log probabilities and ids that wait to a chunk."""
        (choice,) = chunk["choices"]
        positions, token_ids = beside.take()
        if positions and self.shape.num_top is not None:
            offset = self._num_chars.get(choice["index"], 0)
            choice["logprobs"] = completion_logprobs(positions, self.shape.num_top, offset)
            spelled = sum(len(position.taken.text) for position in positions)
            self._num_chars[choice["index"]] = offset + spelled
        if self.shape.has_token_ids:
            choice["token_ids"] = token_ids
        return chunk

    def _chunk(self, number: int, text: str) -> dict[str, Any]:
        choice = {"index": number, "text": text, "logprobs": None, "finish_reason": None}
        chunk = {**self.shape.head, "choices": [choice]}
        return {**chunk, "usage": None} if self.has_usage else chunk


async def _chunks(
    state: ServerState,
    asked: CompletionRequest,
    generations: Sequence[Generation],
    shape: CompletionShape,
) -> AsyncIterator[bytes]:
    has_usage, is_continuous = state.usage_in_stream(asked.stream_options)
    chunks = _Chunks(shape, has_usage=has_usage)
    try:
        if asked.echo:
            for place, generation in enumerate(generations):
                num_answers = len(generation.answers)
                for index in range(num_answers):
                    number = place * num_answers + index
                    yield data_event(chunks.echo(number, shape.echoes[place]))
        async for place, step in interleaved(generations):
            number = place * len(generations[place].answers) + step.index
            for chunk in chunks.step(number, step):
                if is_continuous:
                    chunk["usage"] = usage_of(generations).openai()
                yield data_event(chunk)
        if has_usage:
            usage = {**shape.head, "choices": [], "usage": usage_of(generations).openai()}
            yield data_event(usage)
        yield DONE
    except (PyvtError, WireException) as error:
        yield error_event(error)
