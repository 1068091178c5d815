"""StateManager and StatePool: where states go, what is kept of them, what is given up first."""

import pytest

from pyvt.config.cache import CacheGroup
from pyvt.messages import StateSlots
from pyvt.scheduler.state_manager import EMPTY, RequestState, StateManager
from pyvt.scheduler.state_pool import StatePool
from tests.scheduler.requests import core_request, run_step, run_to_end, runner_of, scheduler_of

FULL, STATE = CacheGroup(kind="full"), CacheGroup(kind="state")
HASHES = [bytes([i]) * 32 for i in range(8)]


def manager_of(num_slots: int, *, every: int = 0) -> StateManager:
    return StateManager(StatePool(num_slots), 0, 4, every)


def started(manager: StateManager, name: bytes | None = None, num_hit: int = 0) -> RequestState:
    state = manager.start(name, num_hit, 0)
    assert state is not None
    return state


def test_a_fresh_state_goes_on_from_nothing_and_then_from_its_own_slot() -> None:
    manager = manager_of(3)
    state = started(manager)

    first = manager.plan(state, None, 3, 0, 2)
    manager.settle(state, (), 3, 2)

    assert first == StateSlots(EMPTY, ((2, 1),))
    assert manager.plan(state, None, 3, 2, 1) == StateSlots(1, ((1, 1),))


def test_the_last_whole_block_of_a_prompt_is_kept_within_the_step() -> None:
    manager = manager_of(4)
    state = started(manager)

    slots = manager.plan(state, HASHES, 11, 0, 11)
    manager.settle(state, HASHES, 11, 11)

    assert slots == StateSlots(EMPTY, ((8, 2), (11, 1)))
    assert manager.pool.find(0, HASHES[1]) == 2
    assert manager.pool.num_kept_blocks == 1


def test_a_prompt_of_whole_blocks_is_kept_where_the_same_prompt_can_use_it() -> None:
    manager = manager_of(4)

    slots = manager.plan(started(manager), HASHES, 8, 0, 8)

    assert [count for count, _ in slots.saves] == [4, 8]


def test_a_hit_reads_the_snapshot_and_writes_a_slot_of_its_own() -> None:
    manager = manager_of(4)
    first = started(manager)
    manager.plan(first, HASHES, 9, 0, 9)
    manager.settle(first, HASHES, 9, 9)

    second, third = (started(manager, HASHES[1], 8) for _ in range(2))
    slots = [manager.plan(state, HASHES, 9, 8, 1) for state in (second, third)]
    manager.free(first)

    assert slots == [StateSlots(2, ((1, 3),)), StateSlots(2, ((1, 4),))]
    assert manager.pool.ref_count(2) == 2


def test_long_prompts_are_kept_now_and_then_and_where_they_leave_others() -> None:
    manager = manager_of(9, every=8)
    state = started(manager)
    state.branch = 12

    slots = manager.plan(state, HASHES, 30, 0, 30)

    assert [count for count, _ in slots.saves] == [8, 12, 16, 24, 28, 30]


def test_generated_text_keeps_its_last_boundary_only() -> None:
    manager = manager_of(5)
    state = started(manager)
    kept = []
    for start, end in [(0, 5), *((i, i + 1) for i in range(5, 13))]:
        manager.plan(state, HASHES, 5, start, end - start)
        manager.settle(state, HASHES, 5, end)
        kept.append([i for i in range(4) if manager.pool.find(0, HASHES[i]) is not None])

    assert kept == [[0], [0], [0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 2], [0, 2]]
    manager.free(state)
    manager.pool.check_integrity()
    assert manager.pool.num_free_blocks == 5


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_a_state_goes_on_from_behind_the_last_right_draft(num_right: int) -> None:
    manager = manager_of(8)
    state = started(manager)
    manager.plan(state, HASHES, 5, 0, 5)
    manager.settle(state, HASHES, 5, 5)

    assert manager.reserve(state, 3)
    slots = manager.plan(state, HASHES, 5, 5, 4)
    manager.settle(state, HASHES, 5, 6 + num_right)
    following = manager.plan(state, HASHES, 5, 6 + num_right, 1)

    assert [count for count, _ in slots.saves] == [1, 2, 3, 4]
    assert following.initial == slots.saves[num_right][1]
    assert (manager.pool.find(0, HASHES[1]) is not None) == (num_right >= 2)
    manager.free(state)
    assert manager.pool.num_free_blocks == 8


def test_drafts_without_slots_are_refused_and_nothing_is_taken() -> None:
    manager = manager_of(2)
    state = started(manager)

    assert not manager.reserve(state, 2)
    assert manager.pool.num_free_blocks == 1


def test_the_snapshot_that_spares_least_goes_first_and_one_in_use_stays() -> None:
    pool = StatePool(3)
    for name, num_spared in zip(HASHES[:3], (30, 10, 20), strict=True):
        (slot,) = pool.allocate(1) or ()
        assert pool.keep(0, name, slot, num_spared)
        pool.release((slot,))

    pool.retain((2,))
    taken = [pool.allocate(1), pool.allocate(1), pool.allocate(1)]

    assert taken == [[3], [1], None]
    assert pool.num_evictions == 2


def test_a_snapshot_that_nobody_uses_grows_old() -> None:
    pool = StatePool(2)
    for name, num_spared in ((HASHES[0], 15), (HASHES[1], 10)):
        (slot,) = pool.allocate(1) or ()
        pool.keep(0, name, slot, num_spared)
        pool.release((slot,))
    for name in HASHES[2:]:  # each is worth less than the first, and the first is not asked for
        (slot,) = pool.allocate(1) or ()
        pool.keep(0, name, slot, 10)
        pool.release((slot,))

    assert pool.find(0, HASHES[0]) is None


def test_a_snapshot_without_kv_goes_before_all_others() -> None:
    pool = StatePool(2, is_reachable=lambda name: name == HASHES[1])
    for name, num_spared in ((HASHES[0], 99), (HASHES[1], 1)):
        (slot,) = pool.allocate(1) or ()
        pool.keep(0, name, slot, num_spared)
        pool.release((slot,))

    assert pool.allocate(1) == [1]


def test_the_last_slot_is_a_snapshot_that_is_taken_over() -> None:
    manager = manager_of(2)
    first = started(manager)
    manager.plan(first, HASHES, 5, 0, 5)
    manager.settle(first, HASHES, 5, 5)

    second = started(manager, HASHES[0], 4)

    assert manager.plan(second, HASHES, 5, 4, 1) == StateSlots(2, ((1, 2),))
    assert manager.start(None, 0, 0) is None


def test_a_lost_step_keeps_no_snapshot() -> None:
    scheduler = scheduler_of(16, groups=(FULL, STATE), num_state_slots=3)
    scheduler.add_request(core_request("a", range(9), 2))
    step = scheduler.schedule()

    scheduler.rollback(step)

    states = scheduler.kv_cache_manager.states
    assert states is not None
    assert states.pool.num_free_blocks == 3
    assert states.pool.num_kept_blocks == 0


@pytest.mark.parametrize("num_answers", [1, 3])
def test_a_chat_of_twelve_turns_finds_all_but_a_block_of_the_prompt_before(
    num_answers: int,
) -> None:
    """With more answers the turns of as many chats are interleaved."""
    scheduler = scheduler_of(400, groups=(FULL, STATE), num_state_slots=num_answers * 4)
    runner = runner_of(scheduler)
    prompts = [[chat, 7, 7] for chat in range(num_answers)]
    before = [0] * num_answers
    for turn in range(12):
        for chat, prompt in enumerate(prompts):
            prompt += [(3 * turn + i + chat) % 50 for i in range(20)]
            request = core_request(f"{turn}.{chat}", prompt, 5, seed=chat)
            scheduler.add_request(request)
        cached = {}
        tokens: dict[str, list[int]] = {}
        while scheduler.num_unfinished_requests:
            for output in run_step(scheduler, runner):
                cached[output.request_id] = output.num_cached_tokens
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        for chat, prompt in enumerate(prompts):
            assert cached[f"{turn}.{chat}"] >= before[chat] - 4
            before[chat] = len(prompt)
            prompt += tokens[f"{turn}.{chat}"]


def test_an_edited_turn_and_two_branches_start_from_the_prefix_that_they_share() -> None:
    scheduler = scheduler_of(200, groups=(FULL, STATE), num_state_slots=8)
    runner = runner_of(scheduler)
    shared = list(range(17))
    cached = []
    for tail in ([1] * 9, [2] * 9, [3] * 9, [1] * 9):
        scheduler.add_request(core_request(str(len(cached)), shared + tail, 3))
        for output in run_step(scheduler, runner):
            cached.append(output.num_cached_tokens)
        run_to_end(scheduler, runner)

    # The second leaves the first at 16 tokens, where nothing was kept; from then on it is.
    assert cached == [0, 0, 16, 24]
