"""Settings of the scheduler: how much runs in a step, and in which order."""

from dataclasses import dataclass, field

from pyvt.errors import ConfigError

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of the scheduler."""

    max_num_batched_tokens: int = field(
        default=256, metadata={"help": "most tokens of a step, prefill and decode together"}
    )
    max_num_seqs: int = field(default=64, metadata={"help": "most requests that run at once"})
    max_prefill_chunk: int = field(
        default=256, metadata={"help": "most prompt tokens of one request in a step"}
    )
    scheduling_policy: str = field(
        default="fcfs",
        metadata={
            "help": "who goes first: who came first, or the lowest priority number and then who "
            "came first",
            "choices": POLICIES,
        },
    )

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_prefill_chunk"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"[config] scheduler.{name}: expected an integer of at least 1, got {value!r}",
                    field=f"scheduler.{name}",
                )
        if self.scheduling_policy not in POLICIES:
            raise ConfigError(
                f"[config] scheduler.scheduling_policy: expected one of {', '.join(POLICIES)}, "
                f"got {self.scheduling_policy!r}",
                field="scheduler.scheduling_policy",
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                "[config] scheduler.max_num_seqs: expected at most max_num_batched_tokens="
                f"{self.max_num_batched_tokens}, got {self.max_num_seqs}; every running request "
                "needs a token of each step",
                field="scheduler.max_num_seqs",
            )
