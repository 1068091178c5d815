"""EngineCore: its books, its answer to a failing worker, and to an interrupt."""

from typing import Any

import pytest

from pyvt.engine.core import EngineCore
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import SchedulerOutput
from tests.scheduler.requests import core_request, runner_of, scheduler_of


def core_of(num_blocks: int = 16, **runner: Any) -> EngineCore:
    scheduler = scheduler_of(num_blocks)
    return EngineCore(scheduler, runner_of(scheduler, **runner))


def run_out(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_unfinished_requests:
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    return tokens


def raiser(error: BaseException, at_step: int) -> Any:
    countdown = [at_step]

    def before_step(_: SchedulerOutput) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise error

    return before_step


def test_core_idle_step_does_nothing() -> None:
    core = core_of()

    assert core.step() == []
    assert core.stats.num_steps == 0


def test_core_adds_all_requests_or_none() -> None:
    core = core_of(num_blocks=2)
    good, too_long = core_request("good", [1], 2), core_request("long", range(9), 2)

    with pytest.raises(RequestError, match="need 3 KV blocks, the pool has 2"):
        core.add_requests([good, too_long])

    assert not core.has_unfinished_requests


def test_core_refuses_one_id_twice_in_a_batch() -> None:
    core = core_of()
    request = core_request("a", [1], 2)

    with pytest.raises(RequestError, match="expected each id once"):
        core.add_requests([request, request])

    assert not core.has_unfinished_requests


def test_core_worker_failure_ends_the_engine_with_its_cause() -> None:
    core = core_of(before_step=raiser(OSError("disk on fire"), 2))
    core.add_requests([core_request("a", [1], 9), core_request("b", [2], 9)])
    core.step()

    with pytest.raises(EngineDeadError, match="disk on fire") as dead:
        core.step()

    assert isinstance(dead.value.__cause__, OSError)
    assert not core.has_unfinished_requests
    core.scheduler.check_integrity()
    with pytest.raises(EngineDeadError, match="disk on fire"):
        core.add_requests([core_request("c", [1], 1)])
    with pytest.raises(EngineDeadError, match="disk on fire"):
        core.step()


def test_core_interrupted_step_is_computed_again() -> None:
    requests = [core_request(n, [i], 6, ignore_eos=True) for i, n in enumerate("ab")]
    calm = core_of()
    calm.add_requests(requests)
    core = core_of(before_step=raiser(KeyboardInterrupt(), 3))
    core.add_requests(requests)
    first = [core.step(), core.step()]

    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.scheduler.check_integrity()
    rest = run_out(core)

    early = {o.request_id: list(o.new_token_ids) for o in first[0]}
    for output in first[1]:
        early[output.request_id].extend(output.new_token_ids)
    assert {name: early[name] + rest[name] for name in "ab"} == run_out(calm)


def test_core_counts_steps_tokens_and_ends() -> None:
    core = core_of()
    core.add_requests([core_request("a", [1, 2, 3], 2, ignore_eos=True)])
    core.add_requests([core_request("b", [1], 9, ignore_eos=True)])
    core.step()
    core.step()

    core.end_requests(["b", "unknown"], "abort")

    assert (core.stats.num_steps, core.stats.num_scheduled_tokens) == (2, 6)
    assert core.stats.num_generation_tokens == 4
    assert core.stats.num_finished == {"length": 1, "abort": 1}
    last = core.stats.last_step
    assert last is not None
    assert (last.num_reqs, last.num_sampled_tokens, last.scheduler.num_running) == (2, 2, 1)
    assert last.step_ms >= last.execute_ms >= 0
