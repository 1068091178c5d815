"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.errors import PyvtError, RequestError
from pyvt.log import get_logger
from pyvt.sampling_params import MAX_LOGPROBS, SamplingParams
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.body import read_json
from pyvt.server.conversation import conversation
from pyvt.server.errors import WireException, body_of, request_error, wire_error
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, interleaved, needs_stream, usage_of
from pyvt.server.openai.chat_wire import ChatChunks, ChatShape, data_event
from pyvt.server.openai.schema import ChatRequest
from pyvt.server.sampling import sampling_params
from pyvt.server.sse import DONE, EventStream, until_client_leaves
from pyvt.server.state import ServerState, request_id_of, state_of
from pyvt.tokenizer.base import RenderedPrompt

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A chat that was rendered and checked."""

    prompt: RenderedPrompt
    params: SamplingParams
    form: AnswerFormat
    num_top: int | None


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a conversation, whole or as a stream."""
    state = state_of(request)
    config = state.config
    body = await read_json(
        request, max_bytes=config.max_body_bytes, max_depth=config.max_json_depth
    )
    chat = checked(ChatRequest, body)
    model = state.model_name(chat.model)
    llm = state.ready_llm()
    prepared = await llm.run_input(lambda: _prepare(state, chat))
    response_id = f"chatcmpl-{request_id_of(request)}"
    is_stream = bool(chat.stream)
    stream = await state.start(
        prepared.prompt,
        prepared.params,
        request_id=response_id,
        is_stream=needs_stream(prepared.form, is_stream=is_stream),
        priority=chat.priority,
        timeout_s=chat.timeout_s,
    )
    generation = Generation(
        stream=stream, params=prepared.params, form=prepared.form, metrics=state.metrics
    )
    dialect = prepared.form.dialect
    shape = ChatShape(
        response_id=response_id,
        created=int(time.time()),
        model=model,
        num_top=prepared.num_top,
        num_id_chars=0 if dialect is None else dialect.num_id_chars,
        has_reasoning=chat.include_reasoning is not False,
        has_token_ids=bool(chat.return_token_ids),
        warnings=chat.warnings(),
    )
    if is_stream:
        return event_stream(state, _chunks(state, chat, generation, shape))
    await until_client_leaves(request.receive, generation.run())
    assert generation.output is not None, "a finished request has an output"
    prompt_ids = generation.output.prompt_token_ids
    whole = shape.whole(generation.answers, usage_of([generation]), prompt_ids)
    return Response(body_of(whole), media_type="application/json")


def _prepare(state: ServerState, chat: ChatRequest) -> _Prepared:
    """Render a chat and check its parameters; runs beside the loop."""
    llm = state.ready_llm()
    processor = llm.engine.input_processor
    found = conversation(processor, state.speech(processor), chat)
    num_top = None
    if chat.top_logprobs is not None and not chat.logprobs:
        raise request_error(
            "[request] top_logprobs: expected logprobs to be true with it", param="top_logprobs"
        )
    if chat.logprobs:
        num_top = chat.top_logprobs or 0
        if not 0 <= num_top <= MAX_LOGPROBS:
            raise request_error(
                f"[request] top_logprobs: expected 0 to {MAX_LOGPROBS}, got {num_top}",
                param="top_logprobs",
            )
    max_tokens = chat.max_tokens
    if chat.max_completion_tokens is not None:
        max_tokens = chat.max_completion_tokens
    dialect = found.form.dialect
    keeps_special = dialect is not None and dialect.needs_special
    params = sampling_params(
        chat,
        llm.engine.default_params,
        max_tokens=max_tokens,
        logprobs=num_top,
        skip_special_tokens=False if keeps_special else None,
    )
    if found.form.tags is not None and params.stop:
        # The parser looks for them, in the content alone.
        params = sampling_params(chat, params, stop=())
    return _Prepared(found.prompt, params, found.form, num_top)


def event_stream(state: ServerState, chunks: AsyncIterator[bytes]) -> EventStream:
    """Return the response of a stream, under the server's limits."""
    config = state.config
    return EventStream(
        chunks, keep_alive_s=config.keep_alive_interval_s, stall_s=config.stall_timeout_s
    )


async def _chunks(
    state: ServerState, chat: ChatRequest, generation: Generation, shape: ChatShape
) -> AsyncIterator[bytes]:
    options = chat.stream_options
    has_usage = state.config.enable_force_include_usage or bool(options and options.include_usage)
    is_continuous = bool(options and options.continuous_usage_stats)
    chunks = ChatChunks(shape, has_usage)
    yield chunks.roles(len(generation.answers))
    try:
        async for _, step in interleaved([generation]):
            usage = usage_of([generation]) if is_continuous else None
            data = chunks.step(step, usage)
            if data:
                yield data
        if has_usage:
            yield chunks.usage(usage_of([generation]))
        yield DONE
    except (PyvtError, WireException) as error:
        yield error_event(error)


def error_event(error: PyvtError | WireException) -> bytes:
    """Return the event that ends a stream which failed after it had begun."""
    if not isinstance(error, (RequestError, WireException)):
        log.error("a stream failed: %s", error)
    return data_event(wire_error(error).openai_object())
