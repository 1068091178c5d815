"""One request in the engine, its answers, and how it may fail; shared by all routes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyvt.engine.async_llm import RequestStream
from pyvt.errors import RequestError
from pyvt.messages import NOTHING_ALLOWED
from pyvt.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.server.answer.collector import Answer
from pyvt.server.answer.events import Event
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.errors import WireException, server_error
from pyvt.server.metrics import Metrics
from pyvt.server.usage import Usage

# Outputs that wait for one stream and are written at once.
_MOST_AT_ONCE = 16
_GIVEN_UP = ("abort", "error")


@dataclass(slots=True)
class Step:
    """What is new of one answer, which may have grown further when this is read.

    Attributes:
        index: which of the request's answers.
        answer: the answer itself.
        events: what it says.
        new: what the engine told: tokens and log probabilities beside the text.
        is_last: whether the answer ended with this.
    """

    index: int
    answer: Answer
    events: Sequence[Event]
    new: CompletionOutput
    is_last: bool


@dataclass(slots=True, kw_only=True)
class Generation:
    """Reads a stream of the engine into answers; iterate ``steps`` once, to the end.

    Attributes:
        stream: has started.
        params: of the request.
        form: how the answers are read.
        form_warnings: what the form of the text gives up of the request's schemas.
        answers: one for each of ``n``.
        output: the last output that came.
        prompt_logprobs: of the prompt, where asked for; they come with the first output.
    """

    stream: RequestStream
    params: SamplingParams
    form: AnswerFormat
    metrics: Metrics
    form_warnings: tuple[str, ...] = ()
    answers: list[Answer] = field(default_factory=list)
    output: RequestOutput | None = None
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    _given_up: RequestOutput | None = None

    def __post_init__(self) -> None:
        self.answers = [Answer(self.form) for _ in range(self.params.n)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the request is not honoured."""
        return self.form_warnings + (() if self.output is None else self.output.warnings)

    async def steps(self) -> AsyncIterator[Iterator[Step]]:
        """Yield what is there at a time, until all answers have ended; read each to its end.

        Raises:
            WireException: the engine gave up on the request.
            EngineDeadError: the engine has stopped.
        """
        last_s: float | None = None
        try:
            while outputs := await self.stream.take(_MOST_AT_ONCE):
                now_s = time.perf_counter()
                if last_s is not None:
                    self.metrics.gaps.add((now_s - last_s) / len(outputs), len(outputs))
                last_s = now_s
                yield self._read(outputs)
                if self._given_up is not None:
                    raise _failure(self._given_up)
                if all(answer.finish_reason is not None for answer in self.answers):
                    break
        finally:
            self.stream.close()
            if self.output is None:
                self.metrics.record_abort()
            else:
                self.metrics.record_end(
                    self.output.metrics,
                    self._reason(),
                    n=self.params.n,
                    max_tokens=self.params.max_tokens or 0,
                    num_tokens=len(self.output.prompt_token_ids)
                    + max(answer.num_tokens for answer in self.answers),
                )

    def _read(self, outputs: Sequence[RequestOutput]) -> Iterator[Step]:
        for output in outputs:
            self.output = output
            if output.prompt_logprobs is not None:
                self.prompt_logprobs = output.prompt_logprobs
            for new in output.outputs:
                answer = self.answers[new.index]
                if answer.finish_reason is not None:
                    continue
                if new.finish_reason in _GIVEN_UP:
                    self._given_up = output
                    return
                events = answer.take(new)
                yield Step(new.index, answer, events, new, answer.finish_reason is not None)

    def _reason(self) -> str:
        """Return how the request ended; one whose client left was aborted."""
        if self._given_up is not None:
            return next(
                new.finish_reason
                for new in self._given_up.outputs
                if new.finish_reason in _GIVEN_UP
            )
        return self.answers[0].finish_reason or "abort"

    async def run(self) -> "Generation":
        """Read to the end; return itself."""
        async for steps in self.steps():
            for _ in steps:
                pass
        return self

    def add_usage(self, usage: Usage) -> None:
        """Add what the request cost so far."""
        if self.output is not None:
            usage.add(self.output, self.answers)


def usage_of(generations: Sequence[Generation]) -> Usage:
    """Return what requests cost so far."""
    usage = Usage()
    for generation in generations:
        generation.add_usage(usage)
    return usage


def needs_stream(form: AnswerFormat, *, is_stream: bool) -> bool:
    """Return whether the engine must give each token by itself.

    It must where tokens are attributed to reasoning or content, or something is looked for here
    that ends the answer; else one output at the end is cheaper.
    """
    return is_stream or form.tags is not None or form.is_single


async def interleaved(
    generations: Sequence[Generation],
) -> AsyncIterator[tuple[int, Iterable[Step]]]:
    """Yield the steps of several requests as they come, each with its request's place."""
    if len(generations) == 1:
        async for steps in generations[0].steps():
            yield 0, steps
        return
    queue: asyncio.Queue[tuple[int, Iterable[Step]] | BaseException | None]
    queue = asyncio.Queue(maxsize=8)

    async def read(place: int, generation: Generation) -> None:
        try:
            async for steps in generation.steps():
                # Read here: this end must know when the answers have ended.
                await queue.put((place, list(steps)))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [
        asyncio.ensure_future(read(place, generation))
        for place, generation in enumerate(generations)
    ]
    try:
        num_left = len(tasks)
        while num_left:
            item = await queue.get()
            if item is None:
                num_left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failure(output: RequestOutput) -> Exception:
    """Return what went wrong with a request that the engine gave up on."""
    if output.error == NOTHING_ALLOWED:
        return RequestError(output.error, code="nothing_allowed")
    if any(new.finish_reason == "error" for new in output.outputs):
        return WireException(server_error("the engine could not compute the answer"))
    if output.error is not None:
        return RequestError(output.error, code="deadline_exceeded")
    return RequestError(
        "[server] request: was aborted before the answer was complete", code="aborted"
    )
