"""POST /v1/messages and /v1/messages/count_tokens.

A stream is ``message_start``; for each block ``content_block_start``, deltas and
``content_block_stop``; ``message_delta`` with the reason of the end; ``message_stop``.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from pyvt.errors import PyvtError, RequestError
from pyvt.server.answer.blocks import Block, Blocks, Change
from pyvt.server.answer.collector import Answer
from pyvt.server.anthropic.schema import CountRequest, MessagesRequest
from pyvt.server.anthropic.translate import as_chat, names_of
from pyvt.server.chats import PreparedChat, prepare_chat, start_chat
from pyvt.server.errors import WireException, body_of, renamed
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, Step, usage_of
from pyvt.server.openai.chat_wire import call_id
from pyvt.server.openai.events import failure, named_event
from pyvt.server.plain_json import loaded
from pyvt.server.sse import until_client_leaves
from pyvt.server.state import request_id_of, state_of

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


async def messages(request: Request) -> ASGIApp:
    """Answer a conversation, whole or as a stream."""
    state = state_of(request)
    asked = checked(MessagesRequest, await state.body(request))
    model = state.model_name(asked.model)
    message_id = f"msg_{request_id_of(request)}"
    is_stream = bool(asked.stream)
    chat = as_chat(asked)
    generation = await start_chat(
        request, chat, request_id=message_id, is_stream=is_stream, names=names_of(asked)
    )
    writer = _Writer(message_id, model, generation, asked.warnings())
    if is_stream:
        return state.event_stream(writer.stream())
    body = await until_client_leaves(request.receive, writer.whole())
    return Response(body_of(body), media_type="application/json")


async def count_tokens(request: Request) -> Response:
    """Answer how many tokens a conversation has; nothing is run."""
    state = state_of(request)
    asked = checked(CountRequest, await state.body(request))
    state.model_name(asked.model)
    llm = state.ready_llm()
    processor = llm.engine.input_processor
    chat, names = as_chat(asked), names_of(asked)

    def work() -> tuple[PreparedChat, tuple[int, ...]]:
        prepared = prepare_chat(state, chat, names)
        return prepared, processor.tokenize(prepared.prompt)

    try:
        prepared, ids = await llm.run_input(work)
    except (RequestError, WireException) as error:
        raise renamed(error, names) from error
    body: dict[str, Any] = {"input_tokens": len(ids)}
    if warnings := [*asked.warnings(), *prepared.warnings]:
        body["warnings"] = warnings
    return JSONResponse(body)


class _Writer:
    """Writes one answer."""

    def __init__(
        self, message_id: str, model: str, generation: Generation, warnings: list[str]
    ) -> None:
        self.generation = generation
        self.blocks = Blocks()
        self._message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        self._warnings = warnings
        if warnings:
            self._message["warnings"] = warnings

    async def whole(self) -> dict[str, Any]:
        """Read to the end; return the body."""
        async for steps in self.generation.steps():
            for step in steps:
                for _ in self.blocks.push(step.events):
                    pass
        (answer,) = self.generation.answers
        if warnings := [*self._warnings, *self.generation.warnings]:
            self._message["warnings"] = warnings
        content = [_whole_block(block) for block in self.blocks.blocks]
        return {**self._message, "content": content, **_end(answer), "usage": self._usage()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events."""
        try:
            # The number of prompt tokens is known with the first output.
            start: bytes | None = None
            async for steps in self.generation.steps():
                data = b"".join(event for step in steps for event in self._step(step))
                if start is None:
                    start = self._start()
                    data = start + data
                if data:
                    yield data
            (answer,) = self.generation.answers
            delta = {"type": "message_delta", "delta": _end(answer), "usage": self._usage()}
            yield named_event("message_delta", delta)
            yield named_event("message_stop", {"type": "message_stop"})
        except (PyvtError, WireException) as error:
            yield refusal_event(failure(error).anthropic_object())

    def _step(self, step: Step) -> Iterator[bytes]:
        # Read one by one: a change is told before the block grows further.
        for change in self.blocks.push(step.events, is_last=step.is_last):
            yield _event(change)

    def _start(self) -> bytes:
        message = {**self._message, "usage": {**self._usage(), "output_tokens": 0}}
        return named_event("message_start", {"type": "message_start", "message": message})

    def _usage(self) -> dict[str, int]:
        usage = usage_of([self.generation])
        return {
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_completion_tokens,
        }


def refusal_event(body: Mapping[str, Any]) -> bytes:
    """Return the event of a body that refuses, inside a stream."""
    return named_event("error", body)


def _end(answer: Answer) -> dict[str, Any]:
    reason = _STOP_REASONS[answer.finish_reason or "stop"]
    sequence = answer.stop_reason if isinstance(answer.stop_reason, str) else None
    if sequence is not None:
        reason = "stop_sequence"
    elif answer.has_called:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _whole_block(block: Block) -> dict[str, Any]:
    empty = _empty_block(block)
    match block.kind:
        case "text":
            return {**empty, "text": block.text}
        case "reasoning":
            return {**empty, "thinking": block.text}
        case "call":
            return {**empty, "input": _input(block.text)}


def _empty_block(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            tool_id = call_id(0).replace("call_", "toolu_")
            return {"type": "tool_use", "id": tool_id, "name": block.name, "input": {}}


def _input(text: str) -> Any:
    """Return the arguments of a call, or their text where that was cut or is no JSON."""
    try:
        value = loaded(text or "{}")
    except ValueError:
        return {"partial_json": text}
    return value if isinstance(value, dict) else {"value": value}


def _event(change: Change) -> bytes:
    index, block = change.block.index, change.block
    if change.action == "open":
        event = {"index": index, "content_block": _empty_block(block)}
        return named_event("content_block_start", {"type": "content_block_start", **event})
    if change.action == "close":
        return named_event("content_block_stop", {"type": "content_block_stop", "index": index})
    delta = {
        "text": {"type": "text_delta", "text": change.text},
        "reasoning": {"type": "thinking_delta", "thinking": change.text},
        "call": {"type": "input_json_delta", "partial_json": change.text},
    }[block.kind]
    event = {"type": "content_block_delta", "index": index, "delta": delta}
    return named_event("content_block_delta", event)
