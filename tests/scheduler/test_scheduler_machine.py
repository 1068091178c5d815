"""Random traffic through tiny pools: books, bounds and tokens, after every step and at the end.

The bounds are those of ``docs/decisions/0210-bounds-of-waiting.md``.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyvt.config.cache import CacheGroup
from pyvt.mathutil import cdiv
from pyvt.messages import EngineCoreRequest
from pyvt.scheduler.request import RequestStatus
from pyvt.testing.fakes import fake_next_token
from tests.scheduler.requests import EOS, core_request, runner_of, scheduler_of

FULL = CacheGroup(kind="full")
SLIDING = CacheGroup(kind="sliding", window=5)
STATE = CacheGroup(kind="state", snapshot_every=8)
MAX_PROMPT, MAX_NEW, SNAPSHOT = 17, 9, 8
# Prompts share starts, so that some of them are found.
TEXT = [7, 7, 3, 9, 1, 4, 4, 2, 8, 6, 5, 5, 0, 3, 3, 1, 2]


def alone(request: EngineCoreRequest) -> list[int]:
    """Return the tokens of a request that nothing can disturb."""
    tokens = list(request.prompt_token_ids)
    params = request.sampling_params
    while len(tokens) - len(request.prompt_token_ids) < (params.max_tokens or 0):
        tokens.append(fake_next_token(tokens, params.seed or 0, 1000))
        if tokens[-1] in request.eos_token_ids:
            break
    return tokens[len(request.prompt_token_ids) :]


@dataclass
class Expected:
    """A request, what it has given out, and the step by which it must have ended."""

    request: EngineCoreRequest
    order: tuple[int, int]
    tokens: list[int]
    last_step: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler over a fake runner whose tokens depend on the content of every block."""

    groups: tuple[CacheGroup, ...] = (FULL,)
    num_drafts = 0

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        spare=st.integers(0, 8),
        max_num_seqs=st.integers(1, 4),
        room=st.integers(0, 6),
        chunk=st.integers(1, 7),
        policy=st.sampled_from(["fcfs", "priority"]),
        has_prefix_cache=st.booleans(),
    )
    def start(
        self,
        block_size: int,
        spare: int,
        max_num_seqs: int,
        room: int,
        chunk: int,
        policy: str,
        has_prefix_cache: bool,
    ) -> None:
        longest = cdiv(MAX_PROMPT + MAX_NEW - 1, block_size)
        num_token_groups = sum(group.kind != "state" for group in self.groups)
        self.scheduler = scheduler_of(
            longest * num_token_groups + spare,
            block_size,
            groups=self.groups,
            num_state_slots=max_num_seqs + 2 + self.num_drafts,
            has_prefix_cache=has_prefix_cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + room,
            max_prefill_chunk=chunk,
            scheduling_policy=policy,
        )
        self.runner = runner_of(self.scheduler, num_drafts=self.num_drafts)
        self.chunk = min(chunk, room + 1)
        self.unfinished: dict[str, Expected] = {}
        self.num_steps = self.num_added = 0
        self.calm_until = 0

    def _longest_service(self, request: EngineCoreRequest) -> int:
        known = len(request.prompt_token_ids) + (request.sampling_params.max_tokens or 0)
        return 1 + cdiv(known, self.chunk) + (request.sampling_params.max_tokens or 0)

    def _set_bounds(self) -> None:
        """Each must have ended when all before it, and it, were served one after the other."""
        total = 0
        for expected in sorted(self.unfinished.values(), key=lambda e: e.order):
            total += self._longest_service(expected.request)
            expected.last_step = self.num_steps + total

    @rule(
        length=st.integers(1, MAX_PROMPT),
        last=st.integers(0, 2),
        max_tokens=st.integers(1, MAX_NEW),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["", "b"]),
        salt=st.sampled_from([None, None, "s"]),
        is_fork=st.booleans(),
    )
    def add(
        self,
        length: int,
        last: int,
        max_tokens: int,
        priority: int,
        tenant: str,
        salt: str | None,
        is_fork: bool,
    ) -> None:
        request_id = str(self.num_added)
        parent = list(self.unfinished.values())[-1].request if self.unfinished and is_fork else None
        prompt = (*TEXT[: length - 1], last) if parent is None else parent.prompt_token_ids
        request = core_request(
            request_id,
            prompt,
            max_tokens,
            seed=self.num_added,
            priority=priority if parent is None else parent.priority,
            tenant=tenant if parent is None else parent.tenant,
            cache_salt=salt if parent is None else parent.cache_salt,
            fork_of=None if parent is None else parent.request_id,
        )
        self.num_added += 1
        self.scheduler.add_request(request)
        is_ordered = self.scheduler.config.scheduling_policy == "priority"
        order = (request.priority if is_ordered else 0, self.num_added)
        self.unfinished[request_id] = Expected(request, order, [])
        before = {name: e.last_step for name, e in self.unfinished.items()}
        self._set_bounds()
        for name, expected in self.unfinished.items():
            if name != request_id and expected.order < order:
                expected.last_step = before[name]  # nothing came before it

    @rule(index=st.integers(0, 5))
    def abort(self, index: int) -> None:
        if index < len(self.unfinished):
            request_id = list(self.unfinished)[index]
            assert self.scheduler.abort_requests([request_id]) == [request_id]
            expected = self.unfinished.pop(request_id)
            assert expected.tokens == alone(expected.request)[: len(expected.tokens)]

    @rule()
    def reset_prefix_cache(self) -> None:
        self.scheduler.reset_prefix_cache()

    @rule()
    def lose_a_step(self) -> None:
        step = self.scheduler.schedule()
        if step.num_scheduled_tokens:
            self.runner.execute_model(step)
        self.scheduler.rollback(step)
        self.runner.steps.clear()
        self.calm_until = 0
        self._set_bounds()

    @rule(count=st.integers(1, 6))
    def run(self, count: int) -> None:
        for _ in range(count):
            if self.scheduler.num_unfinished_requests:
                self._step()

    def _step(self) -> None:
        scheduler = self.scheduler
        decoding = [r.request_id for r in scheduler._running if r.is_decoding]
        num_preemptions = scheduler.stats().num_preemptions
        step = scheduler.schedule()
        granted = step.num_scheduled_tokens
        assert 0 < sum(granted.values()) <= scheduler.config.max_num_batched_tokens
        most = max(1 + self.num_drafts, scheduler.config.max_prefill_chunk)
        assert max(granted.values()) <= most
        for request_id in decoding:  # each moves, or was preempted
            status = scheduler._requests[request_id].status
            assert request_id in granted or status is RequestStatus.PREEMPTED
        self._check_calm(scheduler.stats().num_preemptions > num_preemptions)
        self.num_steps += 1
        if step.new_requests:
            self.calm_until = self.num_steps + scheduler.kv_cache_manager.block_size - 1
        for output in scheduler.update_from_output(step, self.runner.execute_model(step)):
            expected = self.unfinished[output.request_id]
            expected.tokens.extend(output.new_token_ids)
            if output.finish_reason is not None:
                assert expected.tokens == alone(expected.request)
                assert (expected.tokens[-1] == EOS) == (output.finish_reason == "stop")
                del self.unfinished[output.request_id]
        for request_id, expected in self.unfinished.items():
            assert self.num_steps < expected.last_step, f"{request_id} starves"

    def _check_calm(self, has_preempted: bool) -> None:
        is_bounded = self.groups == (FULL,) and self.scheduler.config.scheduling_policy == "fcfs"
        if has_preempted and is_bounded:
            assert self.num_steps >= self.calm_until, "preempted right after an admission"

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while self.scheduler.num_unfinished_requests:
            self._step()
        self.scheduler.check_integrity()
        manager = self.scheduler.kv_cache_manager
        assert manager.pool.num_free_blocks == manager.pool.num_blocks
        assert not manager.holders
        assert not self.unfinished


class WindowMachine(SchedulerMachine):
    """Full layers beside layers with a window."""

    groups = (FULL, SLIDING, SLIDING)


class HybridMachine(SchedulerMachine):
    """Full layers beside a state that is kept at multiples of ``SNAPSHOT`` tokens too."""

    groups = (FULL, STATE)


class DraftingHybridMachine(HybridMachine):
    """The same with drafts, some of them wrong."""

    num_drafts = 3


class EverythingMachine(SchedulerMachine):
    """A group of each kind."""

    groups = (FULL, SLIDING, STATE)


RUNS = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = RUNS
TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = RUNS
TestHybridMachine = HybridMachine.TestCase
TestHybridMachine.settings = RUNS
TestDraftingHybridMachine = DraftingHybridMachine.TestCase
TestDraftingHybridMachine.settings = RUNS
TestEverythingMachine = EverythingMachine.TestCase
TestEverythingMachine.settings = RUNS
