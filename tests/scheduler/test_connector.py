"""A KV connector beside the scheduler: loads, failures, stores, and blocks held for transfers."""

import inspect

import pytest

from pyvt.config.cache import CacheGroup
from pyvt.engine import core as engine_core
from pyvt.engine.core import EngineCore
from pyvt.errors import KVTierError
from pyvt.kv_tier import KVConnector, MemoryConnector
from pyvt.messages import TransferResults
from pyvt.scheduler import Scheduler
from pyvt.testing.fakes import FakeModelRunner
from tests.scheduler.requests import (
    core_request,
    run_step,
    run_to_end,
    runner_of,
    scheduler_of,
)
from tests.scheduler.test_scheduler_machine import alone

PROMPT = list(range(100, 115))  # three blocks of four and a partial one
FIRST = core_request("0", PROMPT, 3, ignore_eos=True)
# The next turn: four whole blocks of it are stored, of a window the last one.
TURN = [*PROMPT, *alone(FIRST)[:2], 1]
GROUPS = {
    "full": (CacheGroup(kind="full"),),
    "window": (CacheGroup(kind="full"), CacheGroup(kind="sliding", window=5)),
    "states": (CacheGroup(kind="full"), CacheGroup(kind="state")),
    "all": (
        CacheGroup(kind="full"),
        CacheGroup(kind="sliding", window=5),
        CacheGroup(kind="state"),
    ),
}
# Of a window the last block is loaded, of states the one behind the last block.
NUM_LOADED = {"full": 4, "window": 5, "states": 5, "all": 6}


def pair(
    connector: MemoryConnector, groups: str = "full", num_blocks: int = 24, num_state_slots: int = 5
) -> tuple[Scheduler, FakeModelRunner]:
    """Return a fresh scheduler and runner over a connector."""
    scheduler = scheduler_of(
        num_blocks, groups=GROUPS[groups], num_state_slots=num_state_slots, connector=connector
    )
    runner = runner_of(scheduler, connector=connector)
    return scheduler, runner


def run(scheduler: Scheduler, runner: FakeModelRunner, *prompts: list[int]) -> dict[str, int]:
    """Run prompts and their transfers to the end, check tokens; return cached tokens by id."""
    core = EngineCore(scheduler, runner)
    requests = [core_request(str(i), p, 3, ignore_eos=True) for i, p in enumerate(prompts)]
    core.add_requests(requests)
    tokens: dict[str, list[int]] = {}
    cached = {}
    for _ in range(200):
        if not core.has_unfinished_requests:
            break
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            cached[output.request_id] = output.num_cached_tokens
        scheduler.check_integrity()
    assert tokens == {request.request_id: alone(request) for request in requests}
    manager = scheduler.kv_cache_manager
    for pool in [manager.pool, *([] if manager.states is None else [manager.states.pool])]:
        assert pool.num_pinned_blocks == 0
        assert pool.num_free_blocks == pool.num_blocks
    return cached


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("is_async", [False, True], ids=["in-the-step", "meanwhile"])
def test_connector_second_engine_loads_what_the_first_stored(groups: str, is_async: bool) -> None:
    store = MemoryConnector(4, groups=GROUPS[groups])
    run(*pair(store, groups), PROMPT)
    connector = MemoryConnector(4, groups=GROUPS[groups], store=store.store, is_async=is_async)
    scheduler, runner = pair(connector, groups)

    cached = run(scheduler, runner, TURN)

    assert cached == {"0": 16}
    assert connector.num_loaded == NUM_LOADED[groups]
    assert sum(step.total_num_scheduled_tokens for step in runner.steps) == 2 + 2
    assert scheduler.transfers is not None
    assert scheduler.transfers.num_external_tokens == 16


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("is_async", [False, True], ids=["in-the-step", "meanwhile"])
@pytest.mark.parametrize(("failing", "valid"), [(0, 0), (1, 4), (3, 12)])
def test_connector_failed_load_goes_back_and_computes_the_rest(
    groups: str, is_async: bool, failing: int, valid: int
) -> None:
    """The failed block and those after it are computed; nothing wrong is ever published."""
    store = MemoryConnector(4, groups=GROUPS[groups])
    scheduler, runner = pair(store, groups)
    run(scheduler, runner, PROMPT)
    connector = MemoryConnector(4, groups=GROUPS[groups], store=store.store, is_async=is_async)
    names: list[bytes] = []
    assert scheduler.hasher is not None
    scheduler.hasher.extend(names, TURN)
    connector.failing.add(names[failing])
    scheduler, runner = pair(connector, groups)

    cached = run(scheduler, runner, TURN)

    assert cached["0"] <= valid
    assert connector.num_failed == 1
    connector.failing.clear()
    assert run(scheduler, runner, TURN) == {"0": 16}


def test_connector_failed_load_harms_no_neighbour() -> None:
    store = MemoryConnector(4)
    scheduler, runner = pair(store)
    run(scheduler, runner, PROMPT)
    connector = MemoryConnector(4, store=store.store)
    connector.failing.update(name for name, _ in store.store)
    scheduler, runner = pair(connector)

    run(scheduler, runner, [7, 7, 7], PROMPT, [*PROMPT, 1], [8] * 9)

    assert connector.num_failed == 2


def test_connector_that_asks_for_patience_holds_nobody_up() -> None:
    connector = MemoryConnector(4)
    answers = iter([True, True, False, False])
    scheduler, _ = pair(connector)
    connector.is_busy = lambda: next(answers, False)
    scheduler.add_request(core_request("patient", PROMPT, 2, ignore_eos=True))
    scheduler.add_request(core_request("other", [1], 3, ignore_eos=True))

    first, second = scheduler.schedule(), scheduler.schedule()

    assert first.num_scheduled_tokens == {}  # both were asked to wait
    assert set(second.num_scheduled_tokens) == {"patient", "other"}


def test_connector_that_asks_a_lone_request_for_patience_keeps_the_engine_alive() -> None:
    connector = MemoryConnector(4)
    answers = iter([True] * 5)
    connector.is_busy = lambda: next(answers, False)

    assert run(*pair(connector), PROMPT) == {"0": 0}


@pytest.mark.parametrize("call", ["get_num_new_matched_tokens", "request_finished_all_groups"])
def test_connector_call_that_fails_is_a_miss_and_counted(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KVTierError("[tier] node: is gone")

    connector = MemoryConnector(4)
    scheduler, runner = pair(connector)
    monkeypatch.setattr(connector, call, fail)

    assert run(scheduler, runner, PROMPT, [7, 7, 7]) == {"0": 0, "1": 0}
    assert scheduler.transfers is not None
    assert scheduler.transfers.num_failed_calls == 2


def test_connector_is_not_asked_where_all_logits_are_wanted() -> None:
    store = MemoryConnector(4)
    run(*pair(store), PROMPT)
    connector = MemoryConnector(4, store=store.store)
    scheduler, runner = pair(connector)
    scheduler.add_request(core_request("0", PROMPT, 2, prompt_logprobs=0, ignore_eos=True))

    run_to_end(scheduler, runner)

    assert connector.num_loaded == 0


def test_connector_blocks_of_a_finished_request_are_held_until_they_are_stored() -> None:
    connector = MemoryConnector(4)
    scheduler, runner = pair(connector, num_blocks=5)
    scheduler.add_request(core_request("0", PROMPT, 2, ignore_eos=True))
    run_to_end(scheduler, runner)

    held = scheduler.kv_cache_manager.pool.num_pinned_blocks
    step = scheduler.schedule()
    scheduler.update_from_output(step, runner.execute_model(step))

    assert held == 4
    assert scheduler.kv_cache_manager.pool.num_pinned_blocks == 0
    assert not scheduler.has_transfers
    assert len(connector.store) == 4
    assert [event.kind for event in connector.take_events()] == ["stored"] * 4


def test_connector_abort_while_loading_keeps_the_blocks_until_the_load_ends() -> None:
    store = MemoryConnector(4)
    run(*pair(store), PROMPT)
    connector = MemoryConnector(4, store=store.store, is_async=True)
    scheduler, runner = pair(connector)
    scheduler.add_request(core_request("0", PROMPT, 2))
    step = scheduler.schedule()

    scheduler.abort_requests(["0"])
    scheduler.check_integrity()
    held = scheduler.kv_cache_manager.pool.num_pinned_blocks
    scheduler.update_from_output(step, runner.execute_model(step))

    assert held == 4
    assert scheduler.kv_cache_manager.pool.num_pinned_blocks == 0
    scheduler.check_integrity()


@pytest.mark.parametrize("num_steps", [0, 1, 2])
@pytest.mark.parametrize("groups", GROUPS)
def test_connector_abort_in_a_prefill_stores_only_what_is_computed(
    groups: str, num_steps: int
) -> None:
    """A name never leads to a block that was not filled: the next engine would answer from it."""
    store = MemoryConnector(4, groups=GROUPS[groups])
    scheduler = scheduler_of(
        24, groups=GROUPS[groups], num_state_slots=5, connector=store, max_prefill_chunk=6
    )
    runner = runner_of(scheduler, connector=store)
    scheduler.add_request(core_request("0", PROMPT, 3))
    for _ in range(num_steps):
        run_step(scheduler, runner)

    scheduler.abort_requests(["0"])
    step = scheduler.schedule()
    scheduler.update_from_output(step, runner.execute_model(step))

    assert len({name for name, _ in store.store}) == num_steps * 6 // 4
    run(*pair(MemoryConnector(4, groups=GROUPS[groups], store=store.store), groups), PROMPT)


@pytest.mark.parametrize("groups", ["states", "all"])
def test_connector_abort_while_a_state_loads_keeps_its_slot_until_the_load_ends(
    groups: str,
) -> None:
    store = MemoryConnector(4, groups=GROUPS[groups])
    run(*pair(store, groups), PROMPT)
    connector = MemoryConnector(4, groups=GROUPS[groups], store=store.store, is_async=True)
    scheduler, runner = pair(connector, groups)
    scheduler.add_request(core_request("0", TURN, 2))
    step = scheduler.schedule()

    scheduler.abort_requests(["0"])
    scheduler.check_integrity()
    states = scheduler.kv_cache_manager.states
    assert states is not None
    held = states.pool.num_pinned_blocks
    scheduler.update_from_output(step, runner.execute_model(step))

    assert held == 1
    assert states.pool.num_free_blocks == states.pool.num_blocks
    scheduler.check_integrity()


def test_connector_loads_a_state_into_the_last_slot_there_is() -> None:
    store = MemoryConnector(4, groups=GROUPS["states"])
    run(*pair(store, "states"), PROMPT)
    connector = MemoryConnector(4, groups=GROUPS["states"], store=store.store)

    assert run(*pair(connector, "states", num_state_slots=1), TURN) == {"0": 16}


def test_connector_that_lacks_the_state_loads_no_kv_beyond_it() -> None:
    """KV without the state behind it cannot be used, so it is not counted as cached either."""
    store = MemoryConnector(4, groups=GROUPS["states"])
    scheduler, runner = pair(store, "states")
    run(scheduler, runner, PROMPT)
    names: list[bytes] = []
    assert scheduler.hasher is not None
    scheduler.hasher.extend(names, TURN)
    del store.store[names[3], 1]
    connector = MemoryConnector(4, groups=GROUPS["states"], store=store.store)

    assert run(*pair(connector, "states"), TURN) == {"0": 12}
    assert connector.num_loaded == 4


def test_connector_state_that_was_loaded_serves_the_next_request_too() -> None:
    store = MemoryConnector(4, groups=GROUPS["states"])
    run(*pair(store, "states"), PROMPT)
    connector = MemoryConnector(4, groups=GROUPS["states"], store=store.store)
    scheduler, runner = pair(connector, "states")

    assert run(scheduler, runner, TURN) == {"0": 16}
    assert run(scheduler, runner, TURN) == {"0": 16}
    assert connector.num_loaded == 5


def test_connector_results_of_unknown_requests_are_no_error() -> None:
    scheduler, runner = pair(MemoryConnector(4))
    scheduler.add_request(core_request("0", [1], 1))
    step = scheduler.schedule()
    answer = runner.execute_model(step)
    assert scheduler.transfers is not None

    scheduler.transfers.update(
        TransferResults(
            sent=frozenset({"x"}), received=frozenset({"y"}), failed_received=frozenset({"y"})
        )
    )

    assert scheduler.update_from_output(step, answer)[0].finish_reason is not None


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("num_tokens", [0, 3, 8, 13, 100])
def test_rollback_request_computes_the_rest_again(groups: str, num_tokens: int) -> None:
    scheduler = scheduler_of(32, groups=GROUPS[groups], num_state_slots=4)
    runner = runner_of(scheduler)
    request = core_request("a", PROMPT, 8, ignore_eos=True)
    scheduler.add_request(request)
    tokens: list[int] = []
    for _ in range(3):
        step = scheduler.schedule()
        (output,) = scheduler.update_from_output(step, runner.execute_model(step))
        tokens += output.new_token_ids

    valid = scheduler.rollback_request("a", num_tokens)
    scheduler.check_integrity()
    rest, _ = run_to_end(scheduler, runner)

    assert 0 <= valid <= min(num_tokens, 17)
    assert tokens + rest["a"] == alone(request)


class Ending(MemoryConnector):
    """Notes its end; its transfers end only where it is told so."""

    def __init__(self, *, is_stuck: bool) -> None:
        super().__init__(4)
        self.is_stuck = is_stuck
        self.num_shutdowns = 0

    def get_transfer_results(self) -> TransferResults:
        """Report nothing while it is stuck."""
        return TransferResults() if self.is_stuck else super().get_transfer_results()

    def shutdown(self) -> None:
        """Count."""
        self.num_shutdowns += 1


@pytest.mark.parametrize("is_stuck", [False, True])
def test_connector_stores_what_was_ordered_before_the_engine_closes(
    is_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_core, "TRANSFER_GRACE_S", 0.02 if is_stuck else 60.0)
    connector = Ending(is_stuck=is_stuck)
    core = EngineCore(*pair(connector))
    core.add_requests([FIRST])
    while core.scheduler.num_unfinished_requests:
        core.step()
    assert core.scheduler.has_transfers
    assert not connector.store

    core.close()

    assert len(connector.store) == 4
    assert core.scheduler.has_transfers == is_stuck
    assert connector.num_shutdowns == 1


def test_connector_names_are_those_of_the_contract() -> None:
    found = {
        name: tuple(inspect.signature(function).parameters)[1:]
        for name, function in vars(KVConnector).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }

    assert found == {
        "get_num_new_matched_tokens": ("req", "num_computed"),
        "update_state_after_alloc": ("req", "blocks_by_group", "num_external"),
        "build_connector_meta": ("sched_out",),
        "request_finished_all_groups": ("req", "block_ids_by_group"),
        "update_connector_output": ("results",),
        "take_events": (),
        "register_kv_caches": ("caches", "layout"),
        "start_load_kv": ("meta",),
        "wait_for_layer_load": ("layer",),
        "save_kv_layer": ("layer", "kv", "attn_meta"),
        "wait_for_save": (),
        "get_transfer_results": (),
        "handle_preemptions": ("meta",),
        "shutdown": (),
    }
