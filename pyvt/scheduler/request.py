"""Request: the scheduler's record of one request."""

from dataclasses import dataclass, field
from enum import Enum

from pyvt.messages import EngineCoreRequest, FinishReason


class RequestStatus(Enum):
    """Where a request is; ``FINISHED`` is final."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One request from admission to its end.

    Attributes:
        core: the request as it came; never changed.
        output_token_ids: tokens sampled so far.
        draft_token_ids: tokens that a step may verify behind the known ones; never part of them.
        num_computed_tokens: tokens whose KV is valid.
        status: where the request is.
        is_known_to_worker: whether the worker has its row.
        num_preemptions: how often it lost its blocks.
        scheduled_s: the engine clock at its first step.
    """

    core: EngineCoreRequest
    output_token_ids: list[int] = field(default_factory=list)
    draft_token_ids: tuple[int, ...] = ()
    num_computed_tokens: int = 0
    status: RequestStatus = RequestStatus.WAITING
    is_known_to_worker: bool = False
    num_preemptions: int = 0
    scheduled_s: float | None = None

    @property
    def request_id(self) -> str:
        """Identity of the request."""
        return self.core.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.core.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: the prompt and what was sampled."""
        return len(self.core.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens whose KV is not computed: 1 while decoding, more in prefill."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest sampled token is missing."""
        return bool(self.output_token_ids) and self.num_missing_tokens == 1

    @property
    def max_total_tokens(self) -> int:
        """Most tokens whose KV is ever written: the last sampled token's never is."""
        max_tokens = self.core.sampling_params.max_tokens
        assert max_tokens is not None, "the input processor resolves max_tokens"
        return self.num_prompt_tokens + max_tokens - 1

    def append(self, token_id: int) -> tuple[FinishReason, int | None] | None:
        """Add a sampled token; return (finish reason, stop token id) when it ends the request.

        A token of ``eos_token_ids`` has the stop reason None. Before ``min_tokens`` no token ends
        the text, unless a grammar says that it is complete. A token that both ends the text and is
        the last allowed one reads ``stop``.
        """
        self.output_token_ids.append(token_id)
        params = self.core.sampling_params
        has_grammar = self.core.constraints.grammar is not None
        if len(self.output_token_ids) >= params.min_tokens or has_grammar:
            if token_id in self.core.eos_token_ids:
                return "stop", None
            if token_id in params.stop_token_ids:
                return "stop", token_id
        if len(self.output_token_ids) == params.max_tokens:
            return "length", None
        return None
