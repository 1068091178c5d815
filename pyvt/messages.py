"""What engine, scheduler and worker say to each other.

The scheduler never sees a tensor and the worker never sees a ``Request``: a step is one
``SchedulerOutput`` down and one ``ModelRunnerOutput`` up. A request is sent whole when it first
runs (``NewRequestData``) and as a difference afterwards (``CachedRequestData``). A preempted
request is forgotten by the worker and later sent whole again, with what it had generated.

The order of ``num_scheduled_tokens`` is the order of the rows of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from pyvt.sampling_params import SamplingParams

# The text of a request's error when its settings contradict each other.
NOTHING_ALLOWED = (
    "[sampler] logits: expected at least one token to be allowed, got none; check "
    "allowed_token_ids, banned_token_ids, bad_words, min_tokens and structured_outputs"
)

FinishReason = Literal["stop", "length", "abort", "error"]
BlockIds = tuple[tuple[int, ...], ...]


class Matcher(Protocol):
    """The state of one request in its grammar; the worker's row owns it."""

    @property
    def error(self) -> str | None:
        """Why the text cannot go on, None while it can."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        ...

    def masks(self, drafts: Sequence[int], num_left: int) -> Any:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool.

        Called once a step, before sampling; the state does not change. ``drafts`` were let through
        by ``filter_drafts`` in this state; the request may still generate ``num_left`` tokens.
        """
        ...

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that is not allowed; the state does not change."""
        ...

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were generated."""
        ...


class Grammar(Protocol):
    """A compiled grammar; ``structured`` makes it, requests and worker only pass it on."""

    @property
    def shortest(self) -> int:
        """Tokens that a text needs at least, as far as a bounded search could tell."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the grammar leaves out of what was asked for."""
        ...

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> Matcher:
        """Return the state behind what a request has generated.

        With ``max_tokens`` the text is closed before so many tokens.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the input processor made of texts that limit the tokens; goes to the worker as it is.

    Attributes:
        bad_words: sequences of token ids; the last of one is banned where the others precede.
        grammar: what the text must be; once it is complete the text ends, ``min_tokens`` or not.
    """

    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreRequest:
    """A validated request, on its way from the input processor to the core.

    Attributes:
        request_id: unique among unfinished requests.
        prompt: the text of the prompt, None where the caller gave token ids.
        prompt_token_ids: at least one id, all inside the vocabulary.
        sampling_params: with ``max_tokens`` and ``seed`` resolved to integers.
        eos_token_ids: ids that end the text; empty under ``ignore_eos``.
        arrival_s: the engine clock at arrival.
        priority: a lower number goes first under the policy ``priority``.
        tenant: whose KV this request may share; never from the text of a request.
        cache_salt: shares KV only with requests of the same salt; None is a salt of its own.
        fork_of: the request whose prompt this one has too: it starts when that prompt is
            computed, and shares its blocks. None for a request that stands alone.
        constraints: what limits its tokens beside ``sampling_params``.
        deadline_s: the engine clock at which the request is aborted, None for never.
        parent_id: the request that this is one answer of, None for a request of one answer.
        index: which of the ``n`` answers.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int]
    arrival_s: float
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    fork_of: str | None = None
    constraints: Constraints = NO_CONSTRAINTS
    deadline_s: float | None = None
    parent_id: str | None = None
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequestData:
    """A request that the worker does not know.

    Attributes:
        request_id: identity of the row.
        prompt_token_ids: the whole prompt.
        output_token_ids: what was generated before a preemption, else empty.
        sampling_params: as in ``EngineCoreRequest``.
        eos_token_ids: the ids that ``min_tokens`` masks, beside ``stop_token_ids``.
        block_ids: block table of each cache group.
        num_computed_tokens: tokens whose KV is already in those blocks.
        constraints: as in ``EngineCoreRequest``.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int]
    block_ids: BlockIds
    num_computed_tokens: int
    constraints: Constraints = NO_CONSTRAINTS


class CachedRequestData(NamedTuple):
    """What is new about a request that the worker knows; it appended its own sampled tokens.

    Attributes:
        request_id: identity of the row.
        new_block_ids: blocks to append to the table of each cache group; empty where no group has
            any.
        num_computed_tokens: tokens whose KV is valid before this step.
    """

    request_id: str
    new_block_ids: BlockIds
    num_computed_tokens: int


class BlockCopy(NamedTuple):
    """A block of a cache group that is copied before a step."""

    group: int
    src: int
    dst: int


class StateSlots(NamedTuple):
    """Where the state of a request's linear attention is read and written in a step.

    Attributes:
        initial: slot of the state that the step goes on from, -1 for the empty one.
        saves: which states are written: behind how many of the step's tokens, into which slot, in
            order. The last is behind the last token.
    """

    initial: int
    saves: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step's work.

    Attributes:
        new_requests: requests to add.
        cached_requests: requests to go on with.
        num_scheduled_tokens: tokens granted to each request of the step, at least 1 each. A
            request whose grant reaches its last known token gets a token sampled. Drafts count.
        draft_token_ids: drafts to verify, of requests that have any: tokens behind the last known
            one, which the worker proposed in an earlier step.
        total_num_scheduled_tokens: their sum.
        finished_request_ids: requests to forget before the step: finished, aborted or preempted.
            An id may be unknown to the worker, and may come again in ``new_requests``.
        block_copies: copies to make before the step, one after the other.
        state_slots: of each request of the step, in a model with linear attention.
        transfers: what the KV connector asks of the worker, None without one.
    """

    new_requests: tuple[NewRequestData, ...] = ()
    cached_requests: tuple[CachedRequestData, ...] = ()
    num_scheduled_tokens: Mapping[str, int] = field(default_factory=dict)
    draft_token_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    finished_request_ids: frozenset[str] = frozenset()
    block_copies: tuple[BlockCopy, ...] = ()
    state_slots: Mapping[str, StateSlots] = field(default_factory=dict)
    transfers: object | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the worker has nothing to do."""
        return not self.num_scheduled_tokens and self.transfers is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResults:
    """What a KV connector's worker half has ended since it was last asked.

    Attributes:
        sent: requests whose blocks are stored: they may be freed.
        received: requests whose blocks are loaded.
        failed_received: requests whose load failed; they are in ``received`` too.
        invalid_blocks: of failed loads, the blocks of each group that hold nothing.
    """

    sent: frozenset[str] = frozenset()
    received: frozenset[str] = frozenset()
    failed_received: frozenset[str] = frozenset()
    invalid_blocks: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log probabilities at one position; of which logits, the setting ``logprobs_mode`` says.

    Attributes:
        token_id: the token that was taken.
        logprob: its log probability.
        rank: its place among all tokens, 1 for the most likely.
        top: (token id, log probability) of the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """The worker's answer to a ``SchedulerOutput``.

    Attributes:
        sampled_token_ids: new tokens of each request that got any: the drafts that were right and
            one more; a request whose prompt is not finished is absent.
        draft_token_ids: what may follow, to be verified by the next step of a request or forgotten.
        logprobs: one entry for each sampled token, of requests that asked.
        prompt_logprobs: of requests that asked, with the step that ends the prompt: one entry for
            each token of the prompt but the first.
        pooled: of requests that asked, with the step that ends the prompt: the vector of the
            prompt, ``[H]``.
        complete: requests that have generated their last allowed token and whose grammar lets
            nothing but the end follow.
        errors: requests that failed alone, such as a row of logits that is not finite, with the
            text; such a request has no sampled tokens.
        transfers: what the KV connector has ended, None without one.
    """

    sampled_token_ids: Mapping[str, tuple[int, ...]]
    draft_token_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    pooled: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    transfers: TransferResults | None = None


class EngineCoreOutput(NamedTuple):
    """What a step brought for one request.

    Attributes:
        request_id: identity of the request.
        new_token_ids: tokens of this step, the one that ended the text included.
        logprobs: one entry for each new token, where asked for.
        prompt_logprobs: as in ``ModelRunnerOutput``, None in all other steps.
        finish_reason: why the request ended, None while it goes on.
        stop_reason: the stop token id that ended it; None for the model's own end or no end.
        error: the text of a failure when ``finish_reason`` is ``error``, and of the limit that
            ended the request when it is ``abort``.
        scheduled_s: the engine clock at the first step of the request.
        num_cached_tokens: tokens of the prompt whose KV was there when the request started.
        pooled: as in ``ModelRunnerOutput``, None in all other steps.
    """

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    scheduled_s: float = 0.0
    num_cached_tokens: int = 0
    pooled: tuple[float, ...] | None = None
