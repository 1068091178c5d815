"""The policy ``priority``: order of admission, of preemption, and room for the urgent."""

from pyvt.kv_tier import MemoryConnector
from tests.scheduler.requests import core_request, run_step, run_to_end, runner_of, scheduler_of
from tests.scheduler.test_scheduler_machine import alone


def test_priority_lower_number_starts_first_and_arrival_breaks_ties() -> None:
    scheduler = scheduler_of(64, scheduling_policy="priority", max_num_seqs=3)
    for name, priority in (("a", 5), ("b", 1), ("c", 5), ("d", 1)):
        scheduler.add_request(core_request(name, [1, 2], 4, priority=priority))

    assert list(scheduler.schedule().num_scheduled_tokens) == ["b", "d", "a"]


def test_priority_is_ignored_under_fcfs() -> None:
    scheduler = scheduler_of(64)
    for name, priority in (("a", 5), ("b", 1)):
        scheduler.add_request(core_request(name, [1, 2], 4, priority=priority))

    assert list(scheduler.schedule().num_scheduled_tokens) == ["a", "b"]


def test_priority_urgent_request_takes_the_row_of_the_least_urgent() -> None:
    scheduler = scheduler_of(64, scheduling_policy="priority", max_num_seqs=2)
    runner = runner_of(scheduler)
    requests = [
        core_request(name, [i, 2], 6, priority=priority, ignore_eos=True)
        for i, (name, priority) in enumerate((("a", 5), ("b", 9), ("c", 1)))
    ]
    for request in requests[:2]:
        scheduler.add_request(request)
    run_step(scheduler, runner)
    scheduler.add_request(requests[2])

    step = scheduler.schedule()

    assert set(step.num_scheduled_tokens) == {"a", "c"}
    assert scheduler.stats().num_preemptions == 1
    scheduler.update_from_output(step, runner.execute_model(step))
    run_to_end(scheduler, runner)


def test_priority_equal_request_preempts_nobody() -> None:
    scheduler = scheduler_of(64, scheduling_policy="priority", max_num_seqs=1)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("a", [1, 2], 4, priority=3, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("b", [1, 2], 4, priority=3, ignore_eos=True))

    assert list(scheduler.schedule().num_scheduled_tokens) == ["a"]
    assert scheduler.stats().num_preemptions == 0


def test_priority_least_urgent_loses_its_blocks_first() -> None:
    scheduler = scheduler_of(6, scheduling_policy="priority")
    runner = runner_of(scheduler)
    requests = [
        core_request("late", [1, 2], 12, priority=9, ignore_eos=True),
        core_request("soon", [3, 4], 12, priority=1, ignore_eos=True),
    ]
    for request in requests:
        scheduler.add_request(request)

    tokens, _ = run_to_end(scheduler, runner)

    preempted = {name for step in runner.steps[:-1] for name in step.finished_request_ids}
    assert "late" in preempted
    assert tokens == {request.request_id: alone(request) for request in requests}


def test_priority_urgent_prompt_goes_before_a_long_prefill() -> None:
    scheduler = scheduler_of(
        64,
        scheduling_policy="priority",
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_prefill_chunk=8,
    )
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("long", range(100), 2, priority=5))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("urgent", range(50, 56), 2, priority=0))

    step = scheduler.schedule()

    assert dict(step.num_scheduled_tokens) == {"urgent": 6, "long": 2}


def test_priority_urgent_fork_preempts_nobody_before_its_parent_is_computed() -> None:
    """It could not start, so the room would be made in each step of the parent's prefill."""
    scheduler = scheduler_of(
        64,
        scheduling_policy="priority",
        max_num_seqs=2,
        max_num_batched_tokens=8,
        max_prefill_chunk=4,
    )
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("calm", [1], 40, priority=5, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("0", range(24), 2, priority=0))
    scheduler.add_request(core_request("1", range(24), 2, priority=0, seed=1, fork_of="0"))

    for _ in range(5):
        run_step(scheduler, runner)

    assert scheduler.stats().num_preemptions == 0
    assert run_to_end(scheduler, runner)[1].keys() == {"calm", "0", "1"}


def test_priority_urgent_request_preempts_nobody_before_its_connector_has_answered() -> None:
    connector = MemoryConnector(4)
    answers = iter([False] + [True] * 5)
    connector.is_busy = lambda: next(answers, False)
    scheduler = scheduler_of(64, scheduling_policy="priority", max_num_seqs=1, connector=connector)
    runner = runner_of(scheduler, connector=connector)
    scheduler.add_request(core_request("calm", [1], 40, priority=5, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("urgent", [2], 2, priority=0, ignore_eos=True))

    num_preemptions = []
    for _ in range(7):
        run_step(scheduler, runner)
        num_preemptions.append(scheduler.stats().num_preemptions)

    assert num_preemptions == [0, 0, 0, 0, 0, 1, 1]
