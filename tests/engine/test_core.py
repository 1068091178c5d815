"""EngineCore: its books, its answer to a failing worker, and to an interrupt."""

from dataclasses import replace
from typing import Any

import pytest

from pyvt.engine.core import EngineCore
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import EngineCoreRequest, SchedulerOutput
from pyvt.testing.fakes import FakeClock
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


def test_core_deadline_ends_running_and_waiting_requests_in_the_same_step() -> None:
    core, clock = timed_core(max_num_seqs=1)
    core.add_requests([timed("runs", 3.0), timed("waits", 3.0), timed("stays", None)])
    core.step()

    clock.advance(3.0)
    outputs = core.step()

    ends = {o.request_id: o.finish_reason for o in outputs}
    assert ends == {"runs": "abort", "waits": "abort", "stays": None}
    assert "deadline" in str(outputs[0].error)
    assert core.stats.num_finished == {"abort": 2}
    core.scheduler.check_integrity()


def test_core_deadline_before_the_first_step_leaves_nothing_to_run() -> None:
    core, clock = timed_core()
    core.add_requests([timed("a", 1.0)])

    clock.advance(1.0)
    outputs = core.step()

    assert [o.finish_reason for o in outputs] == ["abort"]
    assert core.stats.num_steps == 0
    assert not core.has_unfinished_requests


def test_core_deadline_of_an_ended_request_does_not_end_the_next_of_its_name() -> None:
    core, clock = timed_core()
    core.add_requests([timed("other", 50.0), timed("a", 5.0)])
    core.end_requests(["a"], "abort")
    core.add_requests([timed("a", 20.0)])

    clock.advance(10.0)
    outputs = core.step()

    assert {o.request_id: o.finish_reason for o in outputs} == {"other": None, "a": None}


def timed_core(**config: int) -> tuple[EngineCore, FakeClock]:
    scheduler, clock = scheduler_of(16, **config), FakeClock()
    return EngineCore(scheduler, runner_of(scheduler), clock=clock), clock


def timed(request_id: str, deadline_s: float | None) -> EngineCoreRequest:
    request = core_request(request_id, [1, 2], 9, ignore_eos=True)
    return replace(request, deadline_s=deadline_s)


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
    assert (last.num_reqs, last.num_sampled_tokens) == (2, 2)

    assert last.step_ms >= last.execute_ms >= 0
