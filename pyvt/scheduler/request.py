"""Request: the scheduler's record of one request."""

from enum import Enum

from pyvt.messages import EngineCoreRequest, FinishReason
from pyvt.scheduler.kv_cache_manager import RequestBlocks


class RequestStatus(Enum):
    """Where a request is; ``FINISHED`` is final.

    ``LOADING`` holds blocks that a KV connector fills; it runs when they are filled.
    """

    WAITING = "waiting"
    RUNNING = "running"
    LOADING = "loading"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One request from admission to its end.

    Attributes:
        core: the request as it came; never changed.
        request_id: its identity.
        order: its place among all: priority, then arrival; the least goes first.
        token_ids: prompt and what was sampled so far.
        draft_token_ids: tokens that a step may verify behind ``token_ids``; never part of them.
        num_computed_tokens: tokens whose KV is valid.
        block_hashes: names of its full blocks, as far as they were asked for.
        blocks: what it holds, None while it holds nothing.
        status: where the request is.
        is_known_to_worker: whether the worker has its row.
        num_cached_tokens: tokens of its prompt that were found when it first started, -1 before.
        num_preemptions: how often it lost its blocks.
        scheduled_s: the engine clock at its first step.
    """

    __slots__ = (
        "_ending_ids",
        "_max_total_tokens",
        "_min_total_tokens",
        "block_hashes",
        "blocks",
        "core",
        "draft_token_ids",
        "is_known_to_worker",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "order",
        "request_id",
        "scheduled_s",
        "status",
        "token_ids",
    )

    def __init__(self, core: EngineCoreRequest, order: tuple[int, int] = (0, 0)) -> None:
        params = core.sampling_params
        assert params.max_tokens is not None, "the input processor resolves max_tokens"
        self.core = core
        self.request_id = core.request_id
        self.order = order
        self.token_ids = list(core.prompt_token_ids)
        self.draft_token_ids: tuple[int, ...] = ()
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.block_hashes: list[bytes] = []
        self.blocks: RequestBlocks | None = None
        self.status = RequestStatus.WAITING
        self.is_known_to_worker = False
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.scheduled_s: float | None = None
        self._max_total_tokens = self.num_prompt_tokens + params.max_tokens
        has_grammar = core.constraints.grammar is not None
        self._min_total_tokens = 0 if has_grammar else self.num_prompt_tokens + params.min_tokens
        self._ending_ids = core.eos_token_ids.union(params.stop_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: the prompt and what was sampled."""
        return len(self.token_ids)

    @property
    def num_tokens_with_drafts(self) -> int:
        """Tokens that a step may compute: the known ones and the drafts behind them."""
        return len(self.token_ids) + len(self.draft_token_ids)

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """What was sampled so far."""
        return tuple(self.token_ids[self.num_prompt_tokens :])

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens whose KV is not computed: 1 while decoding, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest sampled token is missing."""
        num_tokens = len(self.token_ids)
        return num_tokens > self.num_prompt_tokens and num_tokens - self.num_computed_tokens == 1

    @property
    def max_total_tokens(self) -> int:
        """Most tokens whose KV is ever written: the last sampled token's never is."""
        return self._max_total_tokens - 1

    def append(self, token_id: int) -> tuple[FinishReason, int | None] | None:
        """Add a sampled token; return (finish reason, stop token id) when it ends the request.

        A token of ``eos_token_ids`` has the stop reason None. Before ``min_tokens`` no token ends
        the text, unless a grammar says that it is complete. A token that both ends the text and is
        the last allowed one reads ``stop``.
        """
        token_ids = self.token_ids
        token_ids.append(token_id)
        num_tokens = len(token_ids)
        if token_id in self._ending_ids and num_tokens >= self._min_total_tokens:
            return "stop", None if token_id in self.core.eos_token_ids else token_id
        if num_tokens == self._max_total_tokens:
            return "length", None
        return None
