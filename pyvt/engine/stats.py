"""Counters of an engine, and the times of its last step."""

from collections import Counter
from dataclasses import dataclass, field

from pyvt.messages import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from pyvt.tally import Tally

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(slots=True, kw_only=True)
class StepStats:
    """One step: where its time went, and what it ran."""

    schedule_ms: float
    execute_ms: float
    update_ms: float
    num_reqs: int
    num_scheduled_tokens: int
    num_sampled_tokens: int

    @property
    def step_ms(self) -> float:
        """Milliseconds of the whole step."""
        return self.schedule_ms + self.execute_ms + self.update_ms


@dataclass(slots=True)
class EngineStats:
    """Sums since the start; ``last_step`` is None before the first step.

    Attributes of speculative decoding are vLLM's metrics: drafts are requests of a step with
    drafted tokens, and ``spec_decode_num_accepted_tokens_per_pos`` counts by place in the draft.
    ``iteration_tokens`` has the tokens of each step.
    """

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_generation_tokens: int = 0
    iteration_tokens: Tally = field(default_factory=lambda: Tally(STEP_TOKENS))
    num_finished: Counter[str] = field(default_factory=Counter)
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    spec_decode_num_accepted_tokens_per_pos: Counter[int] = field(default_factory=Counter)
    last_step: StepStats | None = None

    @property
    def spec_decode_acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that were right, None without any."""
        if not self.spec_decode_num_draft_tokens:
            return None
        return self.spec_decode_num_accepted_tokens / self.spec_decode_num_draft_tokens

    def record_drafts(self, scheduled: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """Count the drafts of a step; a request that failed is left out."""
        for request_id, drafts in scheduled.draft_token_ids.items():
            tokens = answer.sampled_token_ids.get(request_id)
            if tokens is None:
                continue
            self.spec_decode_num_drafts += 1
            self.spec_decode_num_draft_tokens += len(drafts)
            self.spec_decode_num_accepted_tokens += len(tokens) - 1
            self.spec_decode_num_accepted_tokens_per_pos.update(range(len(tokens) - 1))

    def record_step(
        self,
        times_s: tuple[float, float, float, float],
        scheduled: SchedulerOutput,
        outputs: list[EngineCoreOutput],
    ) -> None:
        """Add a step; ``times_s`` is the clock at its start and after each of its three parts."""
        start, scheduled_at, executed_at, updated_at = times_s
        num_sampled = sum(len(output.new_token_ids) for output in outputs)
        self.num_steps += 1
        self.num_scheduled_tokens += scheduled.total_num_scheduled_tokens
        self.iteration_tokens.add(scheduled.total_num_scheduled_tokens)
        self.num_generation_tokens += num_sampled
        self.record_finished([o.finish_reason for o in outputs if o.finish_reason is not None])
        self.last_step = StepStats(
            schedule_ms=(scheduled_at - start) * 1000,
            execute_ms=(executed_at - scheduled_at) * 1000,
            update_ms=(updated_at - executed_at) * 1000,
            num_reqs=len(scheduled.num_scheduled_tokens),
            num_scheduled_tokens=scheduled.total_num_scheduled_tokens,
            num_sampled_tokens=num_sampled,
        )

    def record_finished(self, reasons: list[str]) -> None:
        """Count ended requests by finish reason."""
        self.num_finished.update(reasons)
