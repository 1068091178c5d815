"""InputBatch: one persistent row for each request that the worker knows.

A row holds what a step reads as arrays (tokens, blocks, sampling settings), so that preparing a
step is a few array operations. A row is taken when a request is first sent and given back when it
is finished or preempted.

Dims: C rows, G cache groups, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pyvt.mathutil import cdiv
from pyvt.messages import (
    BlockIds,
    CachedRequestData,
    Matcher,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from pyvt.sampling_params import SamplingParams

Array = np.ndarray[Any, Any]
_SEED_MASK = 2**64 - 1


@dataclass(slots=True, eq=False)
class RequestRow:
    """What is known of one request beside the arrays.

    Attributes:
        row: index of its row in the arrays of ``InputBatch``.
        num_prompt_tokens: tokens before the first that was generated.
        ending_ids: i64 ids that ``min_tokens`` keeps from being generated.
        prompt_ids: i64, each token of the prompt once; None for a request without penalties.
        bias_ids, bias_values: i64 and f32, empty without ``logit_bias``.
        allowed_ids: i64, None where all are allowed.
        banned_ids: i64.
        bad_words: sequences of ids of which the last is banned behind the others.
        matcher: its state in its grammar, None without one.
        num_drafts: most drafts to propose next, None before any were verified.
        prompt_logprobs: entries so far of a request that asked, None where none are due.
        pooled: ``[H]`` f64 sum of the hidden states of the prompt so far, or the last of them, of a
            request that asked; empty before the first.
        has_processors: whether logits are changed before the most likely token is chosen.
        takes_most_likely: whether the answer is the most likely token and nothing else.
    """

    request_id: str
    row: int
    params: SamplingParams
    num_prompt_tokens: int
    ending_ids: Array
    bias_ids: Array
    bias_values: Array
    allowed_ids: Array | None
    banned_ids: Array
    bad_words: tuple[tuple[int, ...], ...] = ()
    matcher: Matcher | None = None
    num_drafts: int | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    pooled: Array | None = None
    prompt_ids: Array | None = None
    has_processors: bool = field(init=False)
    takes_most_likely: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.has_processors = bool(
            _has_penalties(params)
            or self.bias_ids.size
            or self.allowed_ids is not None
            or self.banned_ids.size
            or self.bad_words
            or self.matcher is not None
            or params.min_tokens
        )
        is_plain = params.logprobs is None and not self.has_processors
        self.takes_most_likely = params.is_greedy and is_plain


class LogitsRow(NamedTuple):
    """One row of logits.

    Attributes:
        request: whose row it is.
        ahead: drafted tokens before the token that is chosen here.
    """

    request: RequestRow
    ahead: tuple[int, ...] = ()

    def position(self, rows: "InputBatch") -> int:
        """Return the position in the sequence of the token that is chosen here."""
        return rows.num_tokens[self.request.row] + len(self.ahead)

    def num_output(self, rows: "InputBatch") -> int:
        """Return the tokens generated before the one that is chosen here, drafts included."""
        return self.position(rows) - self.request.num_prompt_tokens


@dataclass(slots=True, eq=False)
class DecodeArrays:
    """Index arrays of a step in which each request had one token; see ``ForwardBatch``.

    Attributes:
        next_places: positions of the step behind it, where all requests go on.
        num_appends: ``InputBatch.num_appends`` when ``block_tables`` was made.
        following: the arrays of the step behind it, where they were made ahead.
    """

    next_places: list[int]
    num_appends: int
    positions: Array
    seq_lens: Array
    slot_mapping: Array
    block_tables: Array
    following: "DecodeArrays | None" = None


@dataclass(slots=True, eq=False)
class RowGroup:
    """The requests of a step: those of the next step too, while the same ones decode.

    Attributes:
        request_ids: their ids, in the order of the step.
        requests: what is known of each.
        rows: the index of each.
        row_ids: the same, ``[R]`` i64.
        starts: 0 to R, ``[R + 1]`` i32: where each has its token in a step of one token each.
        wanted: a row of logits of each.
        last: arrays of the last step, where each request had one token in it.
    """

    request_ids: tuple[str, ...]
    requests: tuple[RequestRow, ...]
    rows: list[int]
    row_ids: Array
    starts: Array
    wanted: tuple[LogitsRow, ...]
    last: DecodeArrays | None = None


def _ids(values: Iterable[int]) -> Array:
    return np.fromiter(values, np.int64)


def _matcher(new: NewRequestData) -> Matcher | None:
    grammar, settings = new.constraints.grammar, new.sampling_params.structured_outputs
    if grammar is None:
        return None
    is_closing = settings is not None and settings.close_within_budget
    max_tokens = new.sampling_params.max_tokens if is_closing else None
    return grammar.start(new.output_token_ids, max_tokens=max_tokens)


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


class InputBatch:
    """The rows of all requests that the worker knows.

    Attributes:
        token_ids: ``[C, max_model_len + 1]`` i64, prompt and generated tokens.
        num_tokens: C counts, known tokens of a row. The counts are lists: a few at a time are read
            and written, and an array operation costs more than a few.
        num_computed_tokens: C counts, tokens whose K and V are in the cache.
        block_tables: ``[G, C, max_blocks]`` i32, one table for each cache group.
        unused_ids: i64 ids of logits that stand for no token; none of them is ever sampled.
        unused_pairs: row and token of each of them, for as many rows as the last step left them out
            of, beside its logits; steps mostly have as many rows as the one before.
        num_blocks: ``[G, C]`` i64, used entries of a block table.
        num_appends: how often blocks were appended to any table.
        temperature, top_p, min_p, repetition, presence, frequency: ``[C]`` f64.
        top_k: ``[C]`` i32.
        seeds: ``[C]`` u64.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        num_groups: int = 1,
        unused_ids: Iterable[int] = (),
    ) -> None:
        self.vocab_size = vocab_size
        self.unused_ids = _ids(unused_ids)
        self.unused_pairs: tuple[Array, Array] | None = None
        self.block_size = block_size
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int64)
        self.num_tokens = [0] * max_num_seqs
        self.num_computed_tokens = [0] * max_num_seqs
        max_blocks = cdiv(max_model_len, block_size)
        self.block_tables = np.zeros((num_groups, max_num_seqs, max_blocks), np.int32)
        self.num_blocks = np.zeros((num_groups, max_num_seqs), np.int64)
        self.temperature = np.ones(max_num_seqs)
        self.top_p = np.ones(max_num_seqs)
        self.min_p = np.zeros(max_num_seqs)
        self.repetition = np.ones(max_num_seqs)
        self.presence = np.zeros(max_num_seqs)
        self.frequency = np.zeros(max_num_seqs)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.seeds = np.zeros(max_num_seqs, np.uint64)
        self._requests: dict[str, RequestRow] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self.num_appends = 0
        self._group: RowGroup | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __getitem__(self, request_id: str) -> RequestRow:
        return self._requests[request_id]

    def update(self, output: SchedulerOutput) -> None:
        """Forget, add and go on with requests as a step says."""
        for request_id in output.finished_request_ids:
            self.remove(request_id)
        for new in output.new_requests:
            self.add(new)
        for cached in output.cached_requests:
            self._continue(cached)

    def add(self, new: NewRequestData) -> None:
        """Take a row for a request."""
        assert new.request_id not in self._requests, f"{new.request_id}: is added once"
        row = self._free_rows.pop()
        self._group = None
        params = new.sampling_params
        request = RequestRow(
            request_id=new.request_id,
            row=row,
            params=params,
            num_prompt_tokens=len(new.prompt_token_ids),
            ending_ids=_ids({*new.eos_token_ids, *params.stop_token_ids}),
            bias_ids=_ids(params.logit_bias or ()),
            bias_values=np.array(list((params.logit_bias or {}).values()), np.float32),
            allowed_ids=None
            if params.allowed_token_ids is None
            else _ids(params.allowed_token_ids),
            banned_ids=_ids(params.banned_token_ids),
            bad_words=new.constraints.bad_words,
            matcher=_matcher(new),
        )
        if params.prompt_logprobs is not None and not new.output_token_ids:
            request.prompt_logprobs = []
        if params.prompt_pooling is not None and not new.output_token_ids:
            request.pooled = np.empty(0)
        if _has_penalties(params):
            request.prompt_ids = np.unique(_ids(new.prompt_token_ids))
        self._requests[new.request_id] = request
        tokens = (*new.prompt_token_ids, *new.output_token_ids)
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        self.num_computed_tokens[row] = new.num_computed_tokens
        self.num_blocks[:, row] = 0
        self._append_blocks(row, new.block_ids)
        self._set_sampling(row, params)

    def _set_sampling(self, row: int, params: SamplingParams) -> None:
        assert params.seed is not None, "the engine gives every request a seed"
        self.temperature[row] = params.temperature
        self.top_k[row] = min(params.top_k, self.vocab_size)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition[row] = params.repetition_penalty
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.seeds[row] = params.seed & _SEED_MASK

    def _continue(self, cached: CachedRequestData) -> None:
        row = self._requests[cached.request_id].row
        self.num_computed_tokens[row] = cached.num_computed_tokens
        if cached.new_block_ids:
            self._append_blocks(row, cached.new_block_ids)

    def group(self, request_ids: Iterable[str]) -> RowGroup:
        """Return the rows of the requests of a step, in that order."""
        ids = tuple(request_ids)
        if self._group is None or self._group.request_ids != ids:
            requests = tuple([self._requests[request_id] for request_id in ids])
            rows = [request.row for request in requests]
            wanted = tuple(map(LogitsRow, requests))
            row_ids, starts = np.array(rows, np.int64), np.arange(len(ids) + 1, dtype=np.int32)
            self._group = RowGroup(ids, requests, rows, row_ids, starts, wanted)
        return self._group

    @property
    def last_decode(self) -> DecodeArrays | None:
        """The arrays of the last step, where each of its requests had one token."""
        return None if self._group is None else self._group.last

    def _append_blocks(self, row: int, block_ids: BlockIds) -> None:
        self.num_appends += 1
        for group, ids in enumerate(block_ids):
            start = int(self.num_blocks[group, row])
            self.block_tables[group, row, start : start + len(ids)] = ids
            self.num_blocks[group, row] = start + len(ids)

    def append_sampled(self, sampled: Mapping[str, tuple[int, ...]]) -> None:
        """Append the tokens that a step sampled, by request id, to their rows."""
        for request_id, token_ids in sampled.items():
            request = self._requests[request_id]
            row = request.row
            start = self.num_tokens[row]
            end = self.num_tokens[row] = start + len(token_ids)
            if end == start + 1:
                self.token_ids[row, start] = token_ids[0]
            else:
                self.token_ids[row, start:end] = token_ids
            if request.matcher is not None:
                request.matcher.advance(token_ids)

    def place_drafts(self, drafts: Mapping[str, tuple[int, ...]]) -> None:
        """Write drafts behind the tokens of their rows; they are no tokens of the rows."""
        for request_id, token_ids in drafts.items():
            row = self._requests[request_id].row
            start = self.num_tokens[row]
            self.token_ids[row, start : start + len(token_ids)] = token_ids

    def known_tokens(self, request: RequestRow) -> Array:
        """Return a view of the tokens of a row, prompt first."""
        return self.token_ids[request.row, : self.num_tokens[request.row]]

    def remove(self, request_id: str) -> None:
        """Give back the row of a request; an unknown id is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._free_rows.append(request.row)
            self._group = None
