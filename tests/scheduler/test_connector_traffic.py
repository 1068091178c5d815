"""Random traffic over a KV connector: whatever it does, tokens are those of a run alone."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.config.cache import CacheGroup
from pyvt.engine.core import EngineCore
from pyvt.kv_tier import MemoryConnector
from tests.scheduler.requests import core_request, runner_of, scheduler_of
from tests.scheduler.test_scheduler_machine import TEXT, alone

FULL = CacheGroup(kind="full")
SLIDING = CacheGroup(kind="sliding", window=5)
STATE = CacheGroup(kind="state", snapshot_every=8)
KINDS = [(FULL,), (FULL, SLIDING), (FULL, STATE), (FULL, SLIDING, STATE)]
MAX_NEW = 6
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 12),  # the step before which it comes
        st.integers(1, len(TEXT)),  # tokens of the text that all share
        st.integers(0, 2),  # its own last token
        st.integers(1, MAX_NEW),
        st.one_of(st.none(), st.none(), st.integers(1, 4)),  # steps after which it is aborted
    ),
    min_size=2,
    max_size=8,
)


class Unsteady(MemoryConnector):
    """A store that some blocks cannot be read from, that is busy now and then, and forgets."""

    def __init__(self, *args: Any, mishaps: list[int], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._mishaps = mishaps
        self._count = 0
        self.is_busy = lambda: self._mishap() == 1

    def _mishap(self) -> int:
        self._count += 1
        return self._mishaps[self._count % len(self._mishaps)]

    def start_load_kv(self, meta: Any) -> None:
        """Lose a block between its lookup and its load, or fail to read one."""
        for move in [] if meta is None else meta.loads:
            mishap = self._mishap()
            if mishap == 2:
                self.store.pop(move.key, None)
            (self.failing.add if mishap == 3 else self.failing.discard)(move.key[0])
        super().start_load_kv(meta)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.sampled_from(KINDS),
    requests=REQUESTS,
    is_async=st.booleans(),
    mishaps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=9).filter(
        lambda found: set(found) != {1}
    ),
    spare=st.integers(0, 8),
    chunk=st.integers(2, 9),
    num_drafts=st.sampled_from([0, 2]),
    num_state_slots=st.integers(1, 6),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_connector_random_traffic_equals_solo_runs(
    groups: tuple[CacheGroup, ...],
    requests: list[tuple[int, int, int, int, int | None]],
    is_async: bool,
    mishaps: list[int],
    spare: int,
    chunk: int,
    num_drafts: int,
    num_state_slots: int,
    policy: str,
) -> None:
    connector = Unsteady(4, groups=groups, is_async=is_async, mishaps=mishaps)
    scheduler = scheduler_of(
        8 * len(groups) + spare,
        groups=groups,
        num_state_slots=num_state_slots,
        scheduling_policy=policy,
        connector=connector,
        max_num_seqs=3,
        max_num_batched_tokens=12,
        max_prefill_chunk=chunk,
    )
    runner = runner_of(scheduler, connector=connector, num_drafts=num_drafts)
    core = EngineCore(scheduler, runner)
    core.wake()
    made = {
        str(i): core_request(
            str(i), (*TEXT[: n - 1], last), max_tokens, seed=i % 2, priority=-i % 3
        )
        for i, (_, n, last, max_tokens, _) in enumerate(requests)
    }
    tokens: dict[str, list[int]] = {name: [] for name in made}
    ended: set[str] = set()
    for step in range(400):
        for name, (start, _, _, _, abort) in zip(made, requests, strict=True):
            if step == start:
                core.add_requests([made[name]])
            if abort is not None and step == start + abort:
                ended.update(core.end_requests([name], "abort"))
        if step > 16 and not core.has_unfinished_requests:
            break
        for output in core.step():
            tokens[output.request_id].extend(output.new_token_ids)
            if output.finish_reason is not None:
                assert tokens[output.request_id] == alone(made[output.request_id])
                ended.add(output.request_id)
        core.wake()  # nothing is worth waiting for
        scheduler.check_integrity()

    assert ended == made.keys()
    for name, request in made.items():
        assert tokens[name] == alone(request)[: len(tokens[name])]
    manager = scheduler.kv_cache_manager
    for pool in [manager.pool, *([] if manager.states is None else [manager.states.pool])]:
        assert pool.num_pinned_blocks == 0
        assert pool.num_free_blocks == pool.num_blocks
