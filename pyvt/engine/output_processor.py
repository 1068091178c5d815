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
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyvt.engine.core import Clock
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
class _Token:
    """A token that was not given out yet; ``end`` is where its text ends, None while unknown."""

    token_id: int
    logprobs: TokenLogprobs | None
    end: int | None = None


@dataclass(slots=True)
class _State:
    """One unfinished request: its text so far and what of it is still to be given out."""

    request: EngineCoreRequest
    is_stream: bool
    detokenizer: IncrementalDetokenizer
    stop: StopChecker
    metrics: RequestMetrics
    tokens: list[_Token] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    num_chars: int = 0
    num_given: int = 0

    def push_token(self, token_id: int, logprobs: TokenLogprobs | None, *, has_text: bool) -> None:
        """Add a sampled token; ``has_text`` is false for one that ends the text."""
        self.tokens.append(_Token(token_id, logprobs))
        if has_text:
            self.push_text(self.detokenizer.push(token_id))

    def push_text(self, text: str) -> None:
        """Add decoded text; tokens whose text was open end with it."""
        if not text:
            return
        self.num_chars += len(text)
        for token in reversed(self.tokens):
            if token.end is not None:
                break
            token.end = self.num_chars
        if self.metrics.num_generated_tokens < self.request.sampling_params.min_tokens:
            self.give(text)
        else:
            self.give(self.stop.push(text))

    def give(self, text: str) -> None:
        """Make text ready to be given out."""
        if text:
            self.text.append(text)
            self.num_given += len(text)

    def take_tokens(self, *, take_all: bool) -> list[_Token]:
        """Take the tokens whose text has been given out, or all of them."""
        num_taken = len(self.tokens)
        if not take_all:
            is_given = [t.end is not None and t.end <= self.num_given for t in self.tokens]
            num_taken = is_given.index(False) if False in is_given else num_taken
        taken, self.tokens = self.tokens[:num_taken], self.tokens[num_taken:]
        return taken

    def finish(self) -> None:
        """End the text: what the detokenizer and the stop checker hold comes out."""
        if self.stop.matched is None:
            self.push_text(self.detokenizer.flush())
        if self.stop.matched is None:
            self.give(self.stop.flush())


class OutputProcessor:
    """Keeps the text of each unfinished request."""

    def __init__(self, tokenizer: Tokenizer, clock: Clock) -> None:
        self.tokenizer = tokenizer
        self.clock = clock
        self._states: dict[str, _State] = {}

    def add_request(self, request: EngineCoreRequest, *, is_stream: bool) -> None:
        """Get ready for a request's tokens.

        With ``is_stream`` each step that has news gives an output with the difference; otherwise
        there is one output, at the end.
        """
        params = request.sampling_params
        self._states[request.request_id] = _State(
            request=request,
            is_stream=is_stream,
            detokenizer=IncrementalDetokenizer(
                self.tokenizer, skip_special_tokens=params.skip_special_tokens
            ),
            stop=StopChecker(params.stop, is_included=params.include_stop_str_in_output),
            metrics=RequestMetrics(
                arrival_s=request.arrival_s, num_prompt_tokens=len(request.prompt_token_ids)
            ),
        )

    def process(
        self, core_outputs: Iterable[EngineCoreOutput]
    ) -> tuple[list[RequestOutput], list[str]]:
        """Take a step's outputs.

        Returns:
            Outputs for the callers, and ids of requests that a stop string ended: the core must
            end them.
        """
        outputs = []
        stopped = []
        for core_output in core_outputs:
            state = self._states[core_output.request_id]
            reason, stop_reason = self._take(state, core_output)
            if state.stop.matched is not None and core_output.finish_reason is None:
                stopped.append(core_output.request_id)
            if reason is not None:
                del self._states[core_output.request_id]
                outputs.append(self._output(state, reason, stop_reason, core_output.error))
            elif state.is_stream and state.text:
                outputs.append(self._output(state, None, None, None))
        return outputs, stopped

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests; return a last output for each, with the text so far."""
        outputs = []
        for request_id in request_ids:
            state = self._states.pop(request_id, None)
            if state is not None:
                state.finish()
                outputs.append(self._output(state, "abort", None, None))
        return outputs

    def _take(
        self, state: _State, core_output: EngineCoreOutput
    ) -> tuple[FinishReason | None, int | str | None]:
        """Add a step's tokens; return finish reason and stop reason as the caller sees them."""
        num_tokens = len(core_output.new_token_ids)
        if num_tokens:
            now_s = self.clock()
            state.metrics.last_token_s = now_s
            if state.metrics.first_token_s is None:
                state.metrics.first_token_s = now_s
        state.metrics.scheduled_s = core_output.scheduled_s
        if core_output.prompt_logprobs is not None:
            state.prompt_logprobs = core_output.prompt_logprobs
        is_cut = not state.request.sampling_params.include_stop_str_in_output
        for index, token_id in enumerate(core_output.new_token_ids):
            is_end = core_output.finish_reason == "stop" and index == num_tokens - 1 and is_cut
            logprobs = core_output.logprobs[index] if core_output.logprobs else None
            state.metrics.num_generated_tokens += 1
            state.push_token(token_id, logprobs, has_text=not is_end)
            if state.stop.matched is not None:
                break
        if core_output.finish_reason is not None:
            state.finish()
        if state.stop.matched is not None:
            return "stop", state.stop.matched
        return core_output.finish_reason, core_output.stop_reason

    def _output(
        self,
        state: _State,
        reason: FinishReason | None,
        stop_reason: int | str | None,
        error: str | None,
    ) -> RequestOutput:
        is_ready = reason is not None
        grammar = state.request.constraints.grammar
        given = state.take_tokens(take_all=is_ready)
        text = "".join(state.text)
        state.text.clear()
        has_logprobs = state.request.sampling_params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=tuple(token.token_id for token in given),
            finish_reason=reason,
            stop_reason=stop_reason,
            logprobs=tuple(self._position(t.logprobs) for t in given if t.logprobs is not None)
            if has_logprobs
            else None,
        )
        return RequestOutput(
            request_id=state.request.request_id,
            prompt=state.request.prompt,
            prompt_token_ids=state.request.prompt_token_ids,
            outputs=[completion],
            prompt_logprobs=self._prompt_positions(state),
            finished=is_ready,
            metrics=state.metrics,
            error=error,
            warnings=() if grammar is None else grammar.warnings,
        )

    def _prompt_positions(self, state: _State) -> tuple[PositionLogprobs | None, ...] | None:
        """Return the prompt's log probabilities once, with the first output after they came."""
        found, state.prompt_logprobs = state.prompt_logprobs, None
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
