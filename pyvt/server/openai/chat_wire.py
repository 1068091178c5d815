"""Chats on the wire: whole answers, and the chunks of streams.

The order of a stream: one chunk with the role for each choice, in order; then content, reasoning
and tool calls; one chunk with the finish reason for each choice; usage where it was asked for;
``[DONE]``. A tool call has one head with id, name and empty arguments; what follows has the index
and more arguments alone.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from pyvt.outputs import CompletionOutput, PositionLogprobs
from pyvt.server.answer.collector import Answer
from pyvt.server.answer.events import CallArguments, CallStart, Content, Event, Reasoning
from pyvt.server.generation import Generation, Step, usage_of
from pyvt.server.openai.events import dumped
from pyvt.server.openai.logprobs import chat_logprobs, prompt_logprobs
from pyvt.server.usage import Usage

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def call_id(num_chars: int) -> str:
    """Return a new id of a tool call: of so many letters, or ``call_…`` where that is 0."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(num_chars or 24))
    return letters if num_chars else f"call_{letters}"


def finish_reason(answer: Answer) -> str:
    """Return OpenAI's word for the end of an answer, for chats."""
    if answer.has_called:
        return "tool_calls"
    return answer.finish_reason or "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """What the answers to one request have in common.

    Attributes:
        response_id: the same in all chunks.
        created: seconds.
        model: the served name.
        num_top: alternatives of each token, None without log probabilities.
        num_id_chars: as in ``ToolDialect``.
        has_reasoning: whether reasoning is told.
        has_token_ids: whether ids of tokens are told.
        is_call_alone: whether a call is forced, so that there is no content.
        warnings: texts for the client.
    """

    response_id: str
    created: int
    model: str
    num_top: int | None = None
    num_id_chars: int = 0
    has_reasoning: bool = True
    has_token_ids: bool = False
    is_call_alone: bool = False
    warnings: Sequence[str] = ()

    def whole(self, generation: Generation) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        answers = generation.answers
        body: dict[str, Any] = {
            "id": self.response_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage_of([generation]).openai(),
            "system_fingerprint": None,
            "service_tier": None,
        }
        if self.has_token_ids:
            assert generation.output is not None, "a finished request has an output"
            body["prompt_token_ids"] = list(generation.output.prompt_token_ids)
        if generation.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(generation.prompt_logprobs)
        if warnings := [*self.warnings, *generation.warnings]:
            body["warnings"] = warnings
        return body

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        content = "".join(answer.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if answer.calls or self.is_call_alone else ""),
            "refusal": None,
        }
        if answer.reasoning and self.has_reasoning:
            reasoning = "".join(answer.reasoning)
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call_id(self.num_id_chars),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        choice = {
            "index": index,
            "message": message,
            "logprobs": None
            if self.num_top is None
            else chat_logprobs(answer.logprobs, self.num_top),
            "finish_reason": finish_reason(answer),
            "stop_reason": answer.stop_reason,
        }
        if self.has_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice


@dataclass(slots=True)
class Beside:
    """Tokens of one choice that wait for a chunk: text that is held back holds them back too."""

    logprobs: list[PositionLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def add(self, new: CompletionOutput) -> None:
        """Add what the engine told."""
        self.logprobs += new.logprobs or ()
        self.token_ids += new.token_ids

    def take(self) -> tuple[list[PositionLogprobs], list[int]]:
        """Return what waits, and forget it."""
        taken = self.logprobs, self.token_ids
        self.logprobs, self.token_ids = [], []
        return taken


@dataclass(slots=True)
class ChatChunks:
    """Writes the chunks of one stream.

    Args:
        shape: what they have in common.
        has_usage: whether usage ends the stream; earlier chunks then have a null.
        late_warnings: what the engine does not honour, told with the first end of a choice.
    """

    shape: ChatShape
    has_usage: bool
    late_warnings: Callable[[], Sequence[str]] = tuple
    _head: str = ""
    _start: str = ""
    _tail: str = ""
    _no_usage: str = ""
    _is_plain: bool = True
    _beside: dict[int, Beside] = field(default_factory=dict)
    _is_told: bool = False

    def __post_init__(self) -> None:
        shape = self.shape
        head = {
            "id": shape.response_id,
            "object": "chat.completion.chunk",
            "created": shape.created,
            "model": shape.model,
            "system_fingerprint": None,
        }
        self._head = f"data: {dumped(head)[:-1]}"
        # Nothing beside the text is told of a token.
        self._is_plain = shape.num_top is None and not shape.has_token_ids
        self._start = f'{self._head},"choices":[{{"index":'
        self._no_usage = ',"usage":null' if self.has_usage else ""
        self._tail = f',"logprobs":null,"finish_reason":null}}]{self._no_usage}}}\n\n'

    def roles(self, num_choices: int) -> bytes:
        """Return the first chunk of each choice."""
        content = "null" if self.shape.is_call_alone else '""'
        delta = f'{{"role":"assistant","content":{content}}}'
        chunks = [self._chunk(index, delta, None) for index in range(num_choices)]
        if self.shape.warnings:
            more = f'{self._no_usage},"warnings":{dumped(self.shape.warnings)}'
            chunks[0] = self._chunk(0, delta, None, more=more)
        return "".join(chunks).encode()

    def steps(self, steps: Iterable[Step], usage: Callable[[], Usage] | None = None) -> bytes:
        """Return the chunks of what is new, and of the end where it is the end.

        Args:
            steps: what is new.
            usage: asked for each of them where each chunk has its usage.
        """
        return "".join([self._step(step, usage) for step in steps]).encode()

    def _step(self, step: Step, usage: Callable[[], Usage] | None) -> str:
        events = step.events
        if self._is_plain and usage is None and not step.is_last and len(events) == 1:
            (event,) = events
            if type(event) is Content:  # most chunks by far
                text = encode_basestring(event.text)
                return f'{self._start}{step.index},"delta":{{"content":{text}}}{self._tail}'
        deltas = [delta for event in step.events if (delta := self._delta(event)) is not None]
        more = "" if usage is None else f',"usage":{dumped(usage().openai())}'
        beside: Beside | None = None
        if not self._is_plain:
            beside = self._beside.setdefault(step.index, Beside())
            beside.add(step.new)
        chunks = []
        for number, delta in enumerate(deltas):
            # What is told beside the text of several events goes with the last of them.
            with_it = beside if number == len(deltas) - 1 else None
            chunks.append(self._chunk(step.index, delta, with_it, more=more))
        if step.is_last:
            reason = finish_reason(step.answer)
            if not self._is_told and (late := self.late_warnings()):
                self._is_told = True
                more = f'{more or self._no_usage},"warnings":{dumped(late)}'
            end = f'"{reason}","stop_reason":{dumped(step.answer.stop_reason)}'
            chunks.append(self._chunk(step.index, "{}", beside, end=end, more=more))
        return "".join(chunks)

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, which has no choices."""
        return f'{self._head},"choices":[],"usage":{dumped(usage.openai())}}}\n\n'.encode()

    def _delta(self, event: Event) -> str | None:
        match event:
            case Content(text):
                return f'{{"content":{encode_basestring(text)}}}'
            case Reasoning(text):
                quoted = encode_basestring(text)
                if not self.shape.has_reasoning:
                    return None
                return f'{{"reasoning_content":{quoted},"reasoning":{quoted}}}'
            case CallStart(index, name):
                call = {
                    "index": index,
                    "id": call_id(self.shape.num_id_chars),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                return dumped({"tool_calls": [call]})
            case CallArguments(index, text):
                return dumped({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _chunk(
        self,
        index: int,
        delta: str,
        beside: Beside | None,
        *,
        end: str = "null",
        more: str = "",
    ) -> str:
        """Return one chunk.

        Args:
            index: which of the answers.
            delta: JSON of what is new.
            beside: gives the log probabilities and ids that wait.
            end: JSON of the finish reason, and of the stop reason behind it.
            more: JSON behind the choices.
        """
        start = f'{self._start}{index},"delta":{delta}'
        if beside is None and end == "null" and not more:
            return start + self._tail
        logprobs, ids = "null", ""
        if beside is not None:
            positions, token_ids = beside.take()
            if positions and self.shape.num_top is not None:
                logprobs = dumped(chat_logprobs(positions, self.shape.num_top))
            if self.shape.has_token_ids:
                ids = f',"token_ids":{token_ids}'
        more = more or self._no_usage
        return f'{start},"logprobs":{logprobs},"finish_reason":{end}{ids}}}]{more}}}\n\n'
