"""Drafts in the scheduler: what is granted, what is booked, and traffic that equals solo runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.messages import ModelRunnerOutput
from tests.scheduler.requests import (
    core_request,
    run_step,
    run_to_end,
    runner_of,
    scheduler_of,
)


def test_drafts_are_granted_with_the_next_token() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler, num_drafts=3)
    scheduler.add_request(core_request("a", range(6), 20))
    run_step(scheduler, runner)

    step = scheduler.schedule()

    assert step.num_scheduled_tokens == {"a": 4}
    assert len(step.draft_token_ids["a"]) == 3
    assert step.total_num_scheduled_tokens == 4


@pytest.mark.parametrize(
    ("tokens", "num_computed"), [((50,), 7), ((51, 50), 8), ((51, 52, 53, 50), 10)]
)
def test_kv_of_the_drafts_that_were_right_is_kept(
    tokens: tuple[int, ...], num_computed: int
) -> None:
    scheduler = scheduler_of(16)
    scheduler.add_request(core_request("a", range(6), 20))
    first = scheduler.schedule()
    scheduler.update_from_output(
        first,
        ModelRunnerOutput(sampled_token_ids={"a": (9,)}, draft_token_ids={"a": (51, 52, 53)}),
    )
    second = scheduler.schedule()

    (output,) = scheduler.update_from_output(
        second, ModelRunnerOutput(sampled_token_ids={"a": tokens})
    )

    third = scheduler.schedule()
    assert output.new_token_ids == tokens
    assert third.cached_requests[0].num_computed_tokens == num_computed
    assert third.num_scheduled_tokens == {"a": 1}
    assert not third.draft_token_ids


def test_tokens_behind_the_end_are_dropped() -> None:
    scheduler = scheduler_of(16)
    scheduler.add_request(core_request("a", range(6), 20, stop_token_ids=[52]))
    scheduler.update_from_output(
        scheduler.schedule(),
        ModelRunnerOutput(sampled_token_ids={"a": (9,)}, draft_token_ids={"a": (51, 52, 53)}),
    )

    (output,) = scheduler.update_from_output(
        scheduler.schedule(), ModelRunnerOutput(sampled_token_ids={"a": (51, 52, 53, 54)})
    )

    assert output.new_token_ids == (51, 52)
    assert (output.finish_reason, output.stop_reason) == ("stop", 52)
    scheduler.check_integrity()


def test_drafts_never_take_the_budget_of_a_decoding_request() -> None:
    scheduler = scheduler_of(64, max_num_batched_tokens=6, max_num_seqs=4)
    runner = runner_of(scheduler, num_drafts=5)
    for name in "abcd":
        scheduler.add_request(core_request(name, [1], 30))
    for _ in range(4):
        run_step(scheduler, runner)

    step = scheduler.schedule()

    assert step.num_scheduled_tokens == {"a": 3, "b": 1, "c": 1, "d": 1}


def test_drafts_never_take_the_blocks_of_another_request() -> None:
    scheduler = scheduler_of(4, block_size=2)
    runner = runner_of(scheduler, num_drafts=4)
    scheduler.add_request(core_request("a", [1, 2], 3))
    scheduler.add_request(core_request("b", [3, 4], 3))

    _, reasons = run_to_end(scheduler, runner)

    assert reasons == {"a": "length", "b": "length"}
    assert scheduler.stats().num_preemptions == 0


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.lists(st.integers(0, 99), min_size=1, max_size=12),
            st.integers(1, 14),
            st.integers(0, 8),
        ),
        min_size=1,
        max_size=6,
    ),
    num_drafts=st.integers(0, 5),
    block_size=st.sampled_from([1, 2, 4]),
    spare_blocks=st.integers(0, 4),
    budget=st.integers(4, 12),
)
def test_traffic_with_drafts_equals_runs_without(
    requests: list[tuple[list[int], int, int]],
    num_drafts: int,
    block_size: int,
    spare_blocks: int,
    budget: int,
) -> None:
    scheduler = scheduler_of(
        -(-25 // block_size) + spare_blocks,
        block_size,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        max_prefill_chunk=4,
    )
    runner = runner_of(scheduler, num_drafts=num_drafts)
    cores = [core_request(str(i), p, m, seed=i) for i, (p, m, _) in enumerate(requests)]
    by_step = {i: at for i, (_, _, at) in enumerate(requests)}

    def deliver(step: int) -> None:
        for index, at_step in by_step.items():
            if at_step == step:
                scheduler.add_request(cores[index])
        if step < 8 and not scheduler.num_unfinished_requests:
            scheduler.add_request(core_request(f"idle{step}", [0], 1))

    tokens, _ = run_to_end(scheduler, runner, between=deliver)

    for core in cores:
        alone = scheduler_of(64)
        alone.add_request(core)
        want, _ = run_to_end(alone, runner_of(alone))
        assert tokens[core.request_id] == want[core.request_id]
    assert scheduler.kv_cache_manager.pool.num_free_blocks == (
        scheduler.kv_cache_manager.pool.num_blocks
    )
