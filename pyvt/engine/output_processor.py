"""OutputProcessor: token ids become text; stop strings end it; outputs go to the caller.

Stop strings, exactly:

1. Of all occurrences the one that *ends* first counts; of those ending together, the longest.
2. The text ends before it; no part of it is ever given out, in a stream either.
3. In a stream the longest end of the text that could still grow into a stop string is held back,
   and nothing more; what was held back is given out when the text ends otherwise.
4. The result does not depend on how the text was cut into tokens.
5. Before ``min_tokens`` no stop string is looked for.
6. With ``include_stop_str_in_output`` the text ends after it instead, and nothing is held back; a
   token that ends the text has its text too.

A token is given out with the text that completes it, so tokens and log probabilities of a stream
in sum equal those of a whole answer.

The answers of a request with ``n > 1`` are requests of their own to the core. They come together
here: in a stream each output has the answer that has news, with its index; otherwise there is one
output with all answers by index. ``finished`` is set once, when the last of them has ended.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyvt.engine.core import Clock
from pyvt.log import get_logger
from pyvt.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, TokenLogprobs
from pyvt.outputs import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
)
from pyvt.tokenizer.base import Tokenizer
from pyvt.tokenizer.incremental import IncrementalDetokenizer

log = get_logger(__name__)


class StopChecker:
    """Finds stop strings in a growing text and holds back what may become one.

    Attributes:
        matched: the stop string that ended the text, None so far.
    """

    __slots__ = ("_held", "_is_included", "_longest", "_stop", "matched")

    def __init__(self, stop: Iterable[str], *, is_included: bool = False) -> None:
        self._stop = tuple(stop)
        self._is_included = is_included
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what is certain now. After a match nothing may be pushed."""
        buffer = self._held + text
        num_given = len(self._held) if self._is_included else 0
        found = [(at + len(s), -len(s), s) for s in self._stop if (at := buffer.find(s)) >= 0]
        if found:
            end, negative_length, self.matched = min(found)
            self._held = ""
            return buffer[num_given : end if self._is_included else end + negative_length]
        num_held = self._num_held(buffer)
        self._held = buffer[len(buffer) - num_held :]
        return text if self._is_included else buffer[: len(buffer) - num_held]

    def flush(self) -> str:
        """Return what was held back: the text has ended."""
        held, self._held = self._held, ""
        return "" if self._is_included else held

    def _num_held(self, buffer: str) -> int:
        """Return the length of the longest end of ``buffer`` that starts a stop string."""
        for length in range(min(len(buffer), self._longest - 1), 0, -1):
            end = buffer[len(buffer) - length :]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


@dataclass(slots=True)
class _Group:
    """One unfinished request: its answers, by core id while they go on, by index when they ended.

    ``is_stream`` outputs have what is new; otherwise ``done`` collects the answers.
    """

    request: EngineCoreRequest
    is_stream: bool
    metrics: RequestMetrics
    open_ids: dict[str, None]
    done: dict[int, CompletionOutput] = field(default_factory=dict)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: tuple[float, ...] | None = None
    error: str | None = None


@dataclass(slots=True)
class _State:
    """One unfinished answer: its text so far and what of it is still to be given out.

    Attributes:
        token_ids: tokens that were not given out yet.
        logprobs: as many, of a request that asks for them; else empty.
        ends: where the text of each of these tokens ends, as far as that is known; rising.
        is_plain: whether text is given out as it comes, without log probabilities.
        text: pieces that are ready to be given out.
        num_chars: characters of the whole text so far.
        num_given: those of them that were given out or are ready to be.
        num_tokens: sampled tokens.
    """

    request: EngineCoreRequest
    group: _Group
    detokenizer: IncrementalDetokenizer
    stop: StopChecker
    is_plain: bool
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    num_chars: int = 0
    num_given: int = 0
    num_tokens: int = 0

    def push_token(self, token_id: int, *, has_text: bool) -> None:
        """Add a sampled token; ``has_text`` is false for one that ends the text."""
        self.num_tokens += 1
        self.token_ids.append(token_id)
        if has_text:
            self.push_text(self.detokenizer.push(token_id))

    def push_text(self, text: str) -> None:
        """Add decoded text; tokens whose text was open end with it."""
        if not text:
            return
        self.num_chars += len(text)
        self.ends += [self.num_chars] * (len(self.token_ids) - len(self.ends))
        is_free = self.num_tokens < self.request.sampling_params.min_tokens
        self.give(text if is_free else self.stop.push(text))

    def give(self, text: str) -> None:
        """Make text ready to be given out."""
        if text:
            self.text.append(text)
            self.num_given += len(text)

    def take(self, *, take_all: bool) -> tuple[str, tuple[int, ...], list[TokenLogprobs]]:
        """Take the ready text and the tokens whose text has been given out, or all of them."""
        text, self.text = "".join(self.text), []
        num = len(self.token_ids)
        if not take_all:
            num = bisect_right(self.ends, self.num_given)
        taken = tuple(self.token_ids[:num]), self.logprobs[:num]
        del self.token_ids[:num], self.logprobs[:num], self.ends[:num]
        return text, *taken

    def finish(self) -> None:
        """End the text: what the detokenizer and the stop checker hold comes out."""
        if self.stop.matched is None:
            self.push_text(self.detokenizer.flush())
        if self.stop.matched is None:
            self.give(self.stop.flush())


def _is_last_left_out(request: EngineCoreRequest, output: EngineCoreOutput) -> bool:
    """Whether the last token only ends the text; a grammar may end it behind a token of text."""
    params, last = request.sampling_params, output.new_token_ids[-1:]
    ending_ids = request.eos_token_ids.union(params.stop_token_ids)
    return not params.include_stop_str_in_output and not ending_ids.isdisjoint(last)


class OutputProcessor:
    """Keeps the text of each unfinished request."""

    def __init__(self, tokenizer: Tokenizer, clock: Clock) -> None:
        self.tokenizer = tokenizer
        self.clock = clock
        self._states: dict[str, _State] = {}
        self._groups: dict[str, _Group] = {}
        self._ended: dict[Literal["stop", "error"], list[str]] = {}

    @property
    def unfinished_request_ids(self) -> tuple[str, ...]:
        """Requests whose last output has not been made, in the order in which they were added."""
        return tuple(self._groups)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    def core_ids(self, request_ids: Iterable[str]) -> list[str]:
        """Return the core's ids of the unfinished answers of requests; unknown ids have none."""
        groups = (self._groups.get(request_id) for request_id in request_ids)
        return [core_id for group in groups if group is not None for core_id in group.open_ids]

    def add_request(
        self,
        request: EngineCoreRequest,
        answers: Sequence[EngineCoreRequest],
        *,
        is_stream: bool,
    ) -> None:
        """Get ready for the tokens of a request's answers.

        With ``is_stream`` each step that has news gives an output with the difference; otherwise
        there is one output, at the end.
        """
        group = self._groups[request.request_id] = _Group(
            request=request,
            is_stream=is_stream,
            metrics=RequestMetrics(
                arrival_s=request.arrival_s, num_prompt_tokens=len(request.prompt_token_ids)
            ),
            open_ids=dict.fromkeys(answer.request_id for answer in answers),
        )
        params = request.sampling_params
        for answer in answers:
            self._states[answer.request_id] = _State(
                request=answer,
                group=group,
                detokenizer=IncrementalDetokenizer(
                    self.tokenizer, skip_special_tokens=params.skip_special_tokens
                ),
                stop=StopChecker(params.stop, is_included=params.include_stop_str_in_output),
                is_plain=is_stream and not params.stop and params.logprobs is None,
            )

    def process(self, core_outputs: Iterable[EngineCoreOutput]) -> list[RequestOutput]:
        """Take a step's outputs and return those for the callers.

        A request whose text cannot be made ends alone, with the reason ``error``.
        """
        now_s = self.clock()
        outputs = []
        for core_output in core_outputs:
            state = self._states[core_output.request_id]
            try:
                output = self._take(state, core_output, now_s)
            except Exception as error:
                log.exception("text of request %s failed", core_output.request_id)
                if core_output.finish_reason is None:
                    self._ended.setdefault("error", []).append(core_output.request_id)
                text = f"[engine] text: {type(error).__name__}: {error}"
                # What is left to give out may be what fails.
                state.token_ids, state.logprobs, state.ends, state.text = [], [], [], []
                output = self._finish(state, "error", None, text)
            if output is not None:
                outputs.append(output)
        return outputs

    def take_ended(self) -> dict[Literal["stop", "error"], list[str]]:
        """Return, once, the core ids of answers that ended here, by reason.

        The core does not know that, so it must end them: a stop string was found, or the text
        could not be made.
        """
        ended, self._ended = self._ended, {}
        return ended

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests; return a last output for each, with the text so far of each answer."""
        outputs = []
        for request_id in request_ids:
            group = self._groups.get(request_id)
            if group is None:
                continue
            completions = []
            for core_id in list(group.open_ids):
                state = self._states[core_id]
                state.finish()
                completions.append(self._end(state, "abort", None))
            if not group.is_stream:
                completions = [completion for _, completion in sorted(group.done.items())]
            outputs.append(self._output(group, completions))
        return outputs

    def _take(
        self, state: _State, core_output: EngineCoreOutput, now_s: float
    ) -> RequestOutput | None:
        """Add a step's tokens to an answer; return an output where the caller gets one."""
        metrics = state.group.metrics
        num_tokens = len(core_output.new_token_ids)
        if num_tokens:
            metrics.last_token_s = now_s
            if metrics.first_token_s is None:
                metrics.first_token_s = now_s
        if metrics.scheduled_s is None:
            metrics.scheduled_s = core_output.scheduled_s
            metrics.num_cached_tokens = core_output.num_cached_tokens
        if core_output.prompt_logprobs is not None:
            state.group.prompt_logprobs = core_output.prompt_logprobs
        if core_output.pooled is not None:
            state.group.embedding = core_output.pooled
        metrics.num_generated_tokens += num_tokens
        reason, stop_reason = core_output.finish_reason, core_output.stop_reason
        if state.is_plain and num_tokens == 1 and reason is None and not state.token_ids:
            return self._pass_on(state, core_output.new_token_ids)
        is_cut = reason == "stop" and _is_last_left_out(state.request, core_output)
        for index, token_id in enumerate(core_output.new_token_ids):
            if core_output.logprobs:
                state.logprobs.append(core_output.logprobs[index])
            state.push_token(token_id, has_text=not is_cut or index < num_tokens - 1)
            if state.stop.matched is not None:
                metrics.num_generated_tokens -= num_tokens - 1 - index
                break
        if reason is not None:
            state.finish()
        if state.stop.matched is not None:
            if reason is None:
                self._ended.setdefault("stop", []).append(core_output.request_id)
            return self._finish(state, "stop", state.stop.matched, None)
        if reason is not None:
            return self._finish(state, reason, stop_reason, core_output.error)
        if state.group.is_stream and state.text:
            return self._output(state.group, [self._completion(state, None, None)])
        return None

    def _pass_on(self, state: _State, token_ids: tuple[int, ...]) -> RequestOutput | None:
        """Give out a token as it comes, as streams do most of the time; hold it where text is open.

        What is given out here counts neither for ``num_chars`` nor for ``num_given``.
        """
        text = state.detokenizer.push(token_ids[0])
        if not text:
            state.token_ids.append(token_ids[0])
            return None
        completion = CompletionOutput(index=state.request.index, text=text, token_ids=token_ids)
        return self._output(state.group, [completion])

    def _finish(
        self,
        state: _State,
        reason: FinishReason,
        stop_reason: int | str | None,
        error: str | None,
    ) -> RequestOutput | None:
        """End an answer; return an output, unless other answers must end before there is one."""
        group = state.group
        group.error = group.error or error
        completion = self._end(state, reason, stop_reason)
        if group.is_stream:
            return self._output(group, [completion])
        if group.open_ids:
            return None
        return self._output(group, [completion for _, completion in sorted(group.done.items())])

    def _end(
        self, state: _State, reason: FinishReason, stop_reason: int | str | None
    ) -> CompletionOutput:
        """Forget an answer, and its request with the last one; return what is left to give out."""
        group = state.group
        completion = self._completion(state, reason, stop_reason)
        del self._states[state.request.request_id]
        del group.open_ids[state.request.request_id]
        if not group.is_stream:
            group.done[state.request.index] = completion
        if not group.open_ids:
            del self._groups[group.request.request_id]
        return completion

    def _completion(
        self, state: _State, reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        text, token_ids, logprobs = state.take(take_all=reason is not None)
        has_logprobs = state.request.sampling_params.logprobs is not None
        return CompletionOutput(
            index=state.request.index,
            text=text,
            token_ids=token_ids,
            finish_reason=reason,
            stop_reason=stop_reason,
            logprobs=tuple(map(self._position, logprobs)) if has_logprobs else None,
        )

    def _output(self, group: _Group, completions: list[CompletionOutput]) -> RequestOutput:
        request = group.request
        grammar = request.constraints.grammar
        embedding, group.embedding = group.embedding, None
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=completions,
            prompt_logprobs=self._prompt_positions(group),
            embedding=embedding,
            finished=not group.open_ids,
            metrics=group.metrics,
            error=group.error,
            warnings=() if grammar is None else grammar.warnings,
        )

    def _prompt_positions(self, group: _Group) -> tuple[PositionLogprobs | None, ...] | None:
        """Return the prompt's log probabilities once, with the first output after they came."""
        found, group.prompt_logprobs = group.prompt_logprobs, None
        return None if found is None else (None, *map(self._position, found))

    def _position(self, logprobs: TokenLogprobs) -> PositionLogprobs:
        return PositionLogprobs(
            taken=self._logprob(logprobs.token_id, logprobs.logprob),
            rank=logprobs.rank,
            top=tuple(self._logprob(token_id, value) for token_id, value in logprobs.top),
        )

    def _logprob(self, token_id: int, logprob: float) -> Logprob:
        token_bytes = self.tokenizer.token_bytes(token_id)
        text = token_bytes.decode("utf-8", "replace")
        return Logprob(token_id=token_id, logprob=logprob, text=text, token_bytes=token_bytes)
