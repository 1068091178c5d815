"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.errors import PyvtError
from pyvt.server.chats import start_chat
from pyvt.server.errors import WireException, body_of
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, usage_of
from pyvt.server.openai.chat_wire import ChatChunks, ChatShape
from pyvt.server.openai.events import error_event
from pyvt.server.openai.schema import ChatRequest
from pyvt.server.sse import DONE, until_client_leaves
from pyvt.server.state import ServerState, request_id_of, state_of


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a conversation, whole or as a stream."""
    state = state_of(request)
    chat = checked(ChatRequest, await state.body(request))
    model = state.model_name(chat.model)
    response_id = f"chatcmpl-{request_id_of(request)}"
    is_stream = bool(chat.stream)
    generation = await start_chat(request, chat, request_id=response_id, is_stream=is_stream)
    dialect = generation.form.dialect
    shape = ChatShape(
        response_id=response_id,
        created=int(time.time()),
        model=model,
        num_top=generation.params.logprobs,
        num_id_chars=0 if dialect is None else dialect.num_id_chars,
        has_reasoning=chat.include_reasoning is not False,
        has_token_ids=bool(chat.return_token_ids),
        is_call_alone=generation.form.is_call_alone,
        warnings=chat.warnings(),
    )
    if is_stream:
        return state.event_stream(_chunks(state, chat, generation, shape))
    await until_client_leaves(request.receive, generation.run())
    return Response(body_of(shape.whole(generation)), media_type="application/json")


async def _chunks(
    state: ServerState, chat: ChatRequest, generation: Generation, shape: ChatShape
) -> AsyncIterator[bytes]:
    has_usage, is_continuous = state.usage_in_stream(chat.stream_options)
    chunks = ChatChunks(shape, has_usage, lambda: generation.warnings)
    usage = (lambda: usage_of([generation])) if is_continuous else None
    yield chunks.roles(len(generation.answers))
    try:
        async for steps in generation.steps():
            data = chunks.steps(steps, usage)
            if data:
                yield data
        if has_usage:
            yield chunks.usage(usage_of([generation]))
        yield DONE
    except (PyvtError, WireException) as error:
        yield error_event(error)
