"""Stand-ins for tests that need no model and no files: a runner, a clock, a tokenizer."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyvt.config.cache import FULL_GROUP, CacheGroup
from pyvt.kv_tier.connector import KVConnector, KVLayout
from pyvt.messages import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    StateSlots,
    TokenLogprobs,
)
from pyvt.scheduler.block_pool import NULL_BLOCK
from pyvt.tokenizer.base import RenderedPrompt
from pyvt.tokenizer.incremental import decode_ids


class FakeClock:
    """A clock that moves only when told; call it for the time in seconds."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now_s += seconds


def fake_next_token(token_ids: Sequence[int], seed: int, vocab_size: int) -> int:
    """Return the token that follows ``token_ids``: a hash of all of them and the seed."""
    text = f"{seed}:{','.join(map(str, token_ids))}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % vocab_size


@dataclass(slots=True)
class _Row:
    """What the fake worker keeps of a request."""

    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: tuple[list[int], ...]
    seed: int
    max_tokens: int
    top: int | None
    is_pooled: bool


@dataclass(slots=True)
class FakeModelRunner:
    """A runner whose KV cache holds the tokens themselves.

    Each step writes the granted tokens into the slots of the request's blocks, then reads what a
    query may see back through the block tables and hashes it into the next token. A block given to
    two requests, a lost block or a wrong count therefore changes the tokens. A state group holds
    the tokens that went into its state.

    Attributes:
        num_blocks: blocks of its cache; ids outside 1 to this are refused.
        block_size: tokens of a block.
        vocab_size: sampled ids lie below it.
        groups: the cache groups.
        forced: tokens to return instead, by request id; one after another, then hashes again.
        failing: request ids whose row is answered with an error.
        num_drafts: tokens that are drafted for each request; the last of them is always wrong,
            the first in every other step.
        before_step: called with each step before it runs; may raise.
        connector: loads and stores its blocks; it gets them when the runner is made.
        steps: every step that was run.
    """

    num_blocks: int
    block_size: int
    vocab_size: int = 1000
    groups: Sequence[CacheGroup] = (FULL_GROUP,)
    forced: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()
    num_drafts: int = 0
    before_step: Callable[[SchedulerOutput], None] | None = None
    connector: KVConnector | None = None
    steps: list[SchedulerOutput] = field(default_factory=list)
    _rows: dict[str, _Row] = field(default_factory=dict)
    _slots: dict[tuple[int, int], int] = field(default_factory=dict)
    _states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _behind: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.connector is not None:
            layout = KVLayout(block_size=self.block_size, groups=tuple(self.groups), blocks=self)
            self.connector.register_kv_caches({}, layout)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step; AssertionError where the scheduler broke its contract."""
        if self.before_step is not None:
            self.before_step(output)
        self.steps.append(output)
        if self.connector is not None:
            self.connector.handle_preemptions(output.transfers)
            self.connector.start_load_kv(output.transfers)
            self.connector.wait_for_layer_load(0)
        starts = self._update_rows(output)
        assert starts.keys() == output.num_scheduled_tokens.keys(), "grants and rows differ"
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
        for copy in output.block_copies:
            self._copy(*copy)
        for request_id, start in starts.items():
            row, num_tokens = self._rows[request_id], output.num_scheduled_tokens[request_id]
            drafts = output.draft_token_ids.get(request_id, ())
            tokens = (row.token_ids + list(drafts))[start : start + num_tokens]
            assert len(tokens) == num_tokens, f"{request_id}: more granted than is known"
            self._write(row, start, tokens)
            if output.state_slots:
                self._move_state(request_id, output.state_slots[request_id], tokens)
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        errors: dict[str, str] = {}
        for request_id, start in starts.items():
            row = self._rows[request_id]
            drafts = output.draft_token_ids.get(request_id, ())
            end = start + output.num_scheduled_tokens[request_id]
            assert not drafts or end == len(row.token_ids) + len(drafts), "drafts mid-prompt"
            if request_id in self.failing:
                errors[request_id] = "logits are not finite"
            elif end == len(row.token_ids) + len(drafts):
                sampled[request_id] = self._verify(request_id, row, drafts)
                if row.top is not None:
                    logprobs[request_id] = tuple(
                        _fake_logprobs(token_id, row.top) for token_id in sampled[request_id]
                    )
        results = None
        if self.connector is not None:
            self.connector.save_kv_layer(0, (), None)
            self.connector.wait_for_save()
            results = self.connector.get_transfer_results()
        return ModelRunnerOutput(
            sampled_token_ids=sampled,
            draft_token_ids={name: self._drafts(self._rows[name]) for name in sampled},
            logprobs=logprobs,
            errors=errors,
            pooled={
                name: _fake_vector(self._rows[name])
                for name in sampled
                if self._rows[name].is_pooled
            },
            transfers=results,
        )

    def export(self, group: int, block_ids: Sequence[int]) -> list[memoryview]:
        """Return the tokens of blocks as bytes, or those that went into states."""
        if self.groups[group].kind == "state":
            states = [self._states[slot] for slot in block_ids]
            return [memoryview(struct.pack(f"<{len(state)}q", *state)) for state in states]
        size = self.block_size
        slots = [
            [self._slots.get((group, b * size + i), -1) for i in range(size)] for b in block_ids
        ]
        return [memoryview(struct.pack(f"<{size}q", *tokens)) for tokens in slots]

    def import_(
        self, group: int, block_ids: Sequence[int], views: Sequence[memoryview | bytes]
    ) -> None:
        """Fill blocks, or states, with the tokens of ``export``."""
        for block_id, view in zip(block_ids, views, strict=True):
            tokens = struct.unpack(f"<{memoryview(view).nbytes // 8}q", view)
            if self.groups[group].kind == "state":
                self._states[block_id] = tokens
                continue
            assert len(tokens) == self.block_size, "a block has another size"
            for i, token_id in enumerate(tokens):
                self._slots[group, block_id * self.block_size + i] = token_id

    @property
    def known_request_ids(self) -> frozenset[str]:
        """Requests that have a row."""
        return frozenset(self._rows)

    def _update_rows(self, step: SchedulerOutput) -> dict[str, int]:
        """Apply the step's differences; return the first position of each request's tokens."""
        for request_id in step.finished_request_ids:
            self._rows.pop(request_id, None)
        starts = {}
        for new in step.new_requests:
            assert new.request_id not in self._rows, f"{new.request_id} is sent whole twice"
            self._rows[new.request_id] = _row(new)
            starts[new.request_id] = new.num_computed_tokens
        for known in step.cached_requests:
            tables = self._rows[known.request_id].block_ids
            for table, ids in zip(tables, known.new_block_ids or ((),) * len(tables), strict=True):
                table.extend(ids)
            starts[known.request_id] = known.num_computed_tokens
        return starts

    def _copy(self, group: int, src: int, dst: int) -> None:
        assert dst != NULL_BLOCK, "the null block is written"
        for offset in range(self.block_size):
            value = self._slots.get((group, src * self.block_size + offset), -1)
            self._slots[group, dst * self.block_size + offset] = value

    def _write(self, row: _Row, start: int, tokens: Sequence[int]) -> None:
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                continue
            for position, token_id in enumerate(tokens, start):
                self._slots[g, self._slot(row, g, position)] = token_id

    def _move_state(self, request_id: str, slots: StateSlots, tokens: Sequence[int]) -> None:
        """Add a step's tokens to a state, and save it where the step says."""
        before = () if slots.initial < 0 else self._states.get(slots.initial, (-1,))
        self._behind[request_id] = (*before, *tokens)
        assert slots.saves[-1][0] == len(tokens), "the last state is lost"
        for count, slot in slots.saves:
            assert slot != NULL_BLOCK, "the null slot is written"
            self._states[slot] = (*before, *tokens[:count])

    def _slot(self, row: _Row, group: int, position: int) -> int:
        block_id = row.block_ids[group][position // self.block_size]
        assert 1 <= block_id <= self.num_blocks, f"block {block_id} does not exist"
        return block_id * self.block_size + position % self.block_size

    def _verify(self, request_id: str, row: _Row, drafts: Sequence[int]) -> tuple[int, ...]:
        """Append the drafts that are right and the token behind them; return these."""
        tokens: list[int] = []
        for draft in (*drafts, None):
            tokens.append(self._sample(request_id, row))
            row.token_ids.append(tokens[-1])
            if tokens[-1] != draft:
                break
        return tuple(tokens)

    def _drafts(self, row: _Row) -> tuple[int, ...]:
        """Return what will follow, with mistakes: at the end, and first in every other row."""
        num_left = row.max_tokens - (len(row.token_ids) - row.num_prompt_tokens) - 1
        drafts: list[int] = []
        for _ in range(min(self.num_drafts, num_left)):
            ahead = [*row.token_ids, *drafts]
            drafts.append(fake_next_token(ahead, row.seed, self.vocab_size))
        if drafts:
            drafts[-1] += 1
            drafts[0] += len(row.token_ids) % 2
        return tuple(drafts)

    def _sample(self, request_id: str, row: _Row) -> int:
        num_generated = len(row.token_ids) - row.num_prompt_tokens
        forced = self.forced.get(request_id, ())
        if num_generated < len(forced):
            return forced[num_generated]
        read = list(row.token_ids)
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                seen = self._behind[request_id][: len(row.token_ids)]
                read += () if seen == tuple(row.token_ids) else (-1, *seen)
                continue
            first = max(0, len(row.token_ids) - group.window) if group.window else 0
            for position in range(first, len(row.token_ids)):
                token_id = self._slots.get((g, self._slot(row, g, position)), -1)
                if token_id != row.token_ids[position]:
                    read[position] = -2 - token_id
        return fake_next_token(read, row.seed, self.vocab_size)


def _row(new: NewRequestData) -> _Row:
    return _Row(
        token_ids=[*new.prompt_token_ids, *new.output_token_ids],
        num_prompt_tokens=len(new.prompt_token_ids),
        block_ids=tuple(list(table) for table in new.block_ids),
        seed=new.sampling_params.seed or 0,
        max_tokens=new.sampling_params.max_tokens or 0,
        top=new.sampling_params.logprobs,
        is_pooled=new.sampling_params.prompt_pooling is not None,
    )


def _fake_vector(row: _Row) -> tuple[float, ...]:
    return 3.0, 4.0, float(row.num_prompt_tokens)


def _fake_logprobs(token_id: int, top: int) -> TokenLogprobs:
    best = tuple((token_id + i, -1.0 - i) for i in range(top))
    return TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1, top=best)


class FakeTokenizer:
    """Bytes are ids 0 to 255; added tokens follow: ``<eos>``, ``<bos>``, ``<msg>``, ``</msg>``.

    ``encode`` takes added tokens for text, so a test forces them by id.
    """

    EOS, BOS, MSG, END_MSG = range(256, 260)
    vocab_size = 260
    special_ids = frozenset(range(256, 260))
    unused_ids: frozenset[int] = frozenset()
    control_texts = ("<eos>", "<bos>", "<msg>", "</msg>")
    eos_token_ids = (EOS,)
    bos_token_id: int | None = BOS
    specials: Mapping[str, str] = {"eos_token": "<eos>", "bos_token": "<bos>"}
    strips_first_space = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the bytes of the text; nothing is added."""
        return list(text.encode())

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """Return the bytes of the text."""
        return list(rendered.text.encode())

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return decode_ids(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of the id, or the name of an added token."""
        if token_id < 256:
            return bytes([token_id])
        is_added = token_id < self.vocab_size
        return self.control_texts[token_id - 256].encode() if is_added else b""

    def token_text(self, token_id: int) -> str:
        """Return the text of one id alone."""
        return self.token_bytes(token_id).decode("utf-8", "replace")
