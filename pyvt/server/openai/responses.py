"""POST /v1/responses: stateless, whole or as a stream of numbered events."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.errors import PyvtError
from pyvt.outputs import PositionLogprobs
from pyvt.server.answer.blocks import Block, Blocks, Change
from pyvt.server.chats import start_chat
from pyvt.server.errors import WireException, body_of
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, Step, usage_of
from pyvt.server.openai.chat_wire import call_id
from pyvt.server.openai.events import failure, named_event
from pyvt.server.openai.logprobs import chat_logprobs
from pyvt.server.openai.responses_input import NAMES, as_chat
from pyvt.server.openai.responses_schema import ResponsesRequest
from pyvt.server.sse import until_client_leaves
from pyvt.server.state import request_id_of, state_of

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


async def responses(request: Request) -> ASGIApp:
    """Answer an input; nothing is kept."""
    state = state_of(request)
    asked = checked(ResponsesRequest, await state.body(request))
    model = state.model_name(asked.model)
    response_id = f"resp_{request_id_of(request)}"
    is_stream = bool(asked.stream)
    chat = as_chat(asked)
    generation = await start_chat(
        request,
        chat,
        request_id=response_id,
        # With log probabilities it is told of each token which item it is of.
        is_stream=is_stream or bool(chat.logprobs),
        names=NAMES,
    )
    writer = _Writer(response_id, model, asked, generation)
    if is_stream:
        return state.event_stream(writer.stream())
    body = await until_client_leaves(request.receive, writer.whole())
    return Response(body_of(body), media_type="application/json")


class _Writer:
    """Writes one response."""

    def __init__(
        self, response_id: str, model: str, asked: ResponsesRequest, generation: Generation
    ) -> None:
        self.asked = asked
        self.generation = generation
        self.blocks = Blocks()
        self._logprobs = _TextLogprobs(asked.top_logprobs or 0)
        self._number = -1
        self._call_ids: dict[int, str] = {}
        self._base = _base(response_id, model, asked, generation)

    async def whole(self) -> dict[str, Any]:
        """Read to the end; return the body."""
        async for steps in self.generation.steps():
            for step in steps:
                for _ in self._changes(step):
                    pass
        return self._end()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events."""
        in_progress = {"response": {**self._base, "status": "in_progress"}}
        yield self._event("response.created", in_progress)
        yield self._event("response.in_progress", in_progress)
        try:
            async for steps in self.generation.steps():
                data = b"".join(event for step in steps for event in self._step(step))
                if data:
                    yield data
            body = self._end()
            yield self._event(f"response.{body['status']}", {"response": body})
        except (PyvtError, WireException) as error:
            told = failure(error)
            problem = {"code": told.code or told.type, "message": told.message}
            yield self._event("error", {**problem, "param": told.param})
            made = {"output": self._output(), "status": "failed", "error": problem}
            failed = {**self._base, **made}
            yield self._event("response.failed", {"response": failed})

    def _step(self, step: Step) -> Iterator[bytes]:
        # Read one by one: a change is told before the block grows further.
        for change in self._changes(step):
            yield from self._events(change)

    def _changes(self, step: Step) -> Iterator[Change]:
        """Yield what a step changes, with log probabilities put to the text that they are of."""
        self._logprobs.wait(step)
        for change in self.blocks.push(step.events, is_last=step.is_last):
            if (
                change.action == "close"
                and step.is_last
                and self._logprobs.is_waiting(change.block)
            ):
                # Of what has no text, such as the token that ended it.
                yield self._logprobs.give(Change("delta", change.block))
            yield self._logprobs.give(change)

    def _end(self) -> dict[str, Any]:
        (answer,) = self.generation.answers
        usage = usage_of([self.generation])
        is_cut = answer.finish_reason == "length"
        warnings = [*self.asked.warnings(), *self.generation.warnings]
        return {
            **self._base,
            **({"warnings": warnings} if warnings else {}),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output(),
            "usage": {
                "input_tokens": usage.num_prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.num_cached_tokens},
                "output_tokens": usage.num_completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
                "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
            },
        }

    def _output(self) -> list[dict[str, Any]]:
        """Return what was made so far."""
        return [self._item(block, self._status(block)) for block in self.blocks.blocks]

    def _status(self, block: Block) -> str:
        """Return the state of an item that grows no more: whether the answer ended inside of it."""
        (answer,) = self.generation.answers
        is_cut = answer.finish_reason != "stop"
        if block.kind == "call" and answer.is_done:
            is_cut = answer.is_call_cut
        return "incomplete" if is_cut and not block.is_followed else "completed"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(block), "status": status}
        match block.kind:
            case "text":
                content = [self._part(block)]
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "reasoning":
                content = [{"type": "reasoning_text", "text": block.text}]
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "call":
                if block.index not in self._call_ids:
                    self._call_ids[block.index] = call_id(0)
                return {
                    **item,
                    "type": "function_call",
                    "call_id": self._call_ids[block.index],
                    "name": block.name,
                    "arguments": block.text,
                }

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind != "text":
            return {"type": "reasoning_text", "text": block.text}
        logprobs = list(self._logprobs.of(block))
        return {
            "type": "output_text",
            "text": block.text,
            "annotations": [],
            "logprobs": logprobs,
        }

    def _item_id(self, block: Block) -> str:
        number = self._base["id"].removeprefix("resp_")
        return f"{_PREFIXES[block.kind]}_{number}_{block.index}"

    def _events(self, change: Change) -> Iterator[bytes]:
        block = change.block
        match change.action:
            case "open":
                yield from self._open(block)
            case "delta":
                name = {
                    "text": "response.output_text.delta",
                    "reasoning": "response.reasoning_text.delta",
                    "call": "response.function_call_arguments.delta",
                }[block.kind]
                told = {"logprobs": self._logprobs.last} if block.kind == "text" else {}
                yield self._event(name, {**self._place(block), **told, "delta": change.text})
            case "close":
                yield from self._close(block)

    def _open(self, block: Block) -> Iterator[bytes]:
        item = self._item(block, "in_progress")
        if block.kind != "call":
            item["content"] = []
        added = {"output_index": block.index, "item": item}
        yield self._event("response.output_item.added", added)
        if block.kind != "call":
            part = {**self._place(block), "part": self._part(block)}
            yield self._event("response.content_part.added", part)

    def _close(self, block: Block) -> Iterator[bytes]:
        place, status = self._place(block), self._status(block)
        if block.kind == "call":
            done = {**place, "arguments": block.text, "name": block.name}
            # Clients carry a call out once its arguments are done.
            if status == "completed":
                yield self._event("response.function_call_arguments.done", done)
        else:
            part = self._part(block)
            told = {**place, "text": block.text}
            if block.kind == "text":
                told["logprobs"] = part["logprobs"]
            yield self._event(f"response.{part['type']}.done", told)
            yield self._event("response.content_part.done", {**place, "part": part})
        item = {"output_index": block.index, "item": self._item(block, status)}
        yield self._event("response.output_item.done", item)

    def _place(self, block: Block) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        if block.kind != "call":
            place["content_index"] = 0
        return place

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        self._number += 1
        return named_event(name, {"type": name, "sequence_number": self._number, **fields})


class _TextLogprobs:
    """Log probabilities of the tokens of texts; those of reasoning and of calls are not told.

    Attributes:
        last: of the change that was given last.
    """

    def __init__(self, num_top: int) -> None:
        self.last: list[dict[str, Any]] = []
        self._num_top = num_top
        self._waiting: list[PositionLogprobs] = []
        self._by_block: dict[int, list[dict[str, Any]]] = {}

    def wait(self, step: Step) -> None:
        """Take those of a step; text that is held back holds them back too."""
        self._waiting += step.new.logprobs or ()
        if step.answer.num_reasoning_tokens == step.answer.num_tokens:
            self._waiting = []

    def is_waiting(self, block: Block) -> bool:
        """Whether some wait that a text could take."""
        return block.kind == "text" and bool(self._waiting)

    def give(self, change: Change) -> Change:
        """Give those that wait to a change, and return it."""
        self.last = []
        if change.action == "delta":
            if change.block.kind == "text":
                self.last = chat_logprobs(self._waiting, self._num_top)["content"]
                self.of(change.block).extend(self.last)
            self._waiting = []
        return change

    def of(self, block: Block) -> list[dict[str, Any]]:
        """Return all of a text."""
        return self._by_block.setdefault(block.index, [])


def refusal_event(body: Mapping[str, Any]) -> bytes:
    """Return the event of a body that refuses, inside a stream that has no response yet."""
    error = body["error"]
    problem = {"code": error["code"] or error["type"], "message": error["message"]}
    told = {"type": "error", "sequence_number": 0, **problem, "param": error["param"]}
    return named_event("error", told)


def _base(
    response_id: str, model: str, asked: ResponsesRequest, generation: Generation
) -> dict[str, Any]:
    """Return the fields that do not change while the response grows."""
    params = generation.params
    given = asked.model_dump(exclude_none=True, by_alias=True)
    base: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": given.get("reasoning", {"effort": None, "summary": None}),
        "store": False,
        "temperature": params.temperature,
        "text": given.get("text", {"format": {"type": "text"}}),
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": given.get("metadata", {}),
    }
    if warnings := asked.warnings():
        base["warnings"] = warnings
    return base
