"""The prefix cache through the scheduler: what is found, by whom, and what is computed again."""

from typing import Any

import pytest

from pyvt.messages import EngineCoreOutput, SchedulerOutput
from pyvt.scheduler import Scheduler
from pyvt.testing.fakes import FakeModelRunner
from tests.scheduler.requests import core_request, run_to_end, runner_of, scheduler_of
from tests.scheduler.test_scheduler_machine import alone

PROMPT = list(range(100, 112))  # three blocks of four


def run_one(
    scheduler: Scheduler, runner: FakeModelRunner, prompt: list[int], **params: Any
) -> EngineCoreOutput:
    """Run one request of one token; return its output, whose tokens are checked."""
    request = core_request("r", prompt, 1, ignore_eos=True, **params)
    scheduler.add_request(request)
    output = None
    while scheduler.num_unfinished_requests:
        step = scheduler.schedule()
        (output,) = scheduler.update_from_output(step, runner.execute_model(step)) or (None,)
        scheduler.check_integrity()
    assert output is not None
    assert list(output.new_token_ids) == alone(request)
    return output


def computed(steps: list[SchedulerOutput]) -> int:
    return sum(step.total_num_scheduled_tokens for step in steps)


@pytest.mark.parametrize(
    ("prompt", "num_cached"),
    [
        pytest.param(PROMPT, 8, id="same: the last block is computed again"),
        pytest.param([*PROMPT, 1], 12, id="one token more"),
        pytest.param([*PROMPT, *range(9)], 12, id="longer"),
        pytest.param(PROMPT[:9], 8, id="shorter"),
        pytest.param(PROMPT[:8], 4, id="two whole blocks"),
        pytest.param(PROMPT[:4], 0, id="one whole block"),
        pytest.param(PROMPT[:1], 0, id="one token"),
        pytest.param([*PROMPT[:6], 0, *PROMPT[7:]], 4, id="other in the second block"),
        pytest.param([0, *PROMPT], 0, id="other start"),
    ],
)
def test_prefix_cache_finds_whole_blocks_and_leaves_a_token(
    prompt: list[int], num_cached: int
) -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    run_one(scheduler, runner, PROMPT)
    runner.steps.clear()

    output = run_one(scheduler, runner, prompt)

    assert output.num_cached_tokens == num_cached
    assert computed(runner.steps) == len(prompt) - num_cached


def test_prefix_cache_finds_generated_tokens_in_the_next_turn() -> None:
    """Each turn of a chat finds all of the turn before but for its last partial block."""
    scheduler = scheduler_of(64)
    runner = runner_of(scheduler)
    prompt, cached = PROMPT, []

    for turn in range(5):
        request = core_request(str(turn), prompt, 6, ignore_eos=True, seed=turn)
        scheduler.add_request(request)
        tokens, _ = run_to_end(scheduler, runner)
        cached.append(scheduler.stats().prefix_hits - sum(cached))
        prompt = [*prompt, *tokens[str(turn)], 7, 8]

    assert cached == [0, 16, 24, 32, 40]


def test_prefix_cache_off_finds_nothing() -> None:
    scheduler = scheduler_of(16, has_prefix_cache=False)
    runner = runner_of(scheduler)

    found = [run_one(scheduler, runner, PROMPT).num_cached_tokens for _ in range(2)]

    assert found == [0, 0]
    assert scheduler.stats().num_kept_blocks == 0


@pytest.mark.parametrize(
    "other",
    [{"tenant": "b"}, {"cache_salt": "s"}, {"cache_salt": ""}, {"tenant": "b", "cache_salt": "s"}],
    ids=["tenant", "salt", "empty-salt", "both"],
)
def test_prefix_cache_shares_within_a_tenant_and_salt_and_never_across(
    other: dict[str, Any],
) -> None:
    scheduler = scheduler_of(32)
    runner = runner_of(scheduler)
    run_one(scheduler, runner, PROMPT)

    across = run_one(scheduler, runner, PROMPT, **other).num_cached_tokens
    within = run_one(scheduler, runner, PROMPT, **other).num_cached_tokens
    ours = run_one(scheduler, runner, PROMPT).num_cached_tokens

    assert (across, within, ours) == (0, 8, 8)


def test_prefix_cache_serves_prompts_of_any_order_of_lengths() -> None:
    """Long, a short start of it, the same, one token, longer: each equals its run alone."""
    scheduler = scheduler_of(32)
    runner = runner_of(scheduler)

    for length in (12, 5, 5, 1, 12, 11, 2, 4, 8):
        run_one(scheduler, runner, PROMPT[:length])


def test_prefix_cache_running_request_shares_its_published_blocks() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("long", PROMPT, 20, ignore_eos=True))
    step = scheduler.schedule()
    scheduler.update_from_output(step, runner.execute_model(step))

    scheduler.add_request(core_request("same", PROMPT, 2, ignore_eos=True))
    step = scheduler.schedule()

    (new,) = step.new_requests
    assert (new.num_computed_tokens, new.block_ids[0][:2]) == (8, (1, 2))
    assert step.num_scheduled_tokens == {"long": 1, "same": 4}


def test_prefix_cache_publishes_nothing_of_a_step_that_was_lost() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("a", PROMPT, 1))
    step = scheduler.schedule()

    scheduler.rollback(step)

    assert scheduler.schedule().new_requests[0].num_computed_tokens == 0
    assert runner.steps == []


def test_prefix_cache_row_that_failed_publishes_nothing() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler, failing=frozenset({"a"}))
    scheduler.add_request(core_request("a", PROMPT, 1))
    run_to_end(scheduler, runner)

    assert run_one(scheduler, runner, PROMPT).num_cached_tokens == 0


def test_prefix_cache_preempted_request_starts_from_what_is_left() -> None:
    """Pool for one and a half requests; the one that comes back finds its own blocks."""
    scheduler = scheduler_of(7)
    runner = runner_of(scheduler)
    requests = [core_request(n, [i, *PROMPT[:4]], 16, ignore_eos=True) for i, n in enumerate("ab")]
    for request in requests:
        scheduler.add_request(request)

    tokens, _ = run_to_end(scheduler, runner)

    again = [new for step in runner.steps for new in step.new_requests if new.output_token_ids]
    assert again
    assert any(new.num_computed_tokens > 0 for new in again)
    assert tokens == {request.request_id: alone(request) for request in requests}


def test_prefix_cache_evicts_the_ends_of_what_was_used_longest_ago() -> None:
    scheduler = scheduler_of(6)
    runner = runner_of(scheduler)
    other = list(range(200, 212))
    run_one(scheduler, runner, PROMPT)
    run_one(scheduler, runner, other)  # six blocks are kept now, three of each
    run_one(scheduler, runner, PROMPT)  # used again; its last block is computed in another place

    run_one(scheduler, runner, [1, 2, 3, 4])

    assert run_one(scheduler, runner, PROMPT).num_cached_tokens == 8
    assert scheduler.stats().num_evictions > 0
    assert run_one(scheduler, runner, other).num_cached_tokens < 8


def test_prefix_cache_counts_queries_and_hits_over_a_reset() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    run_one(scheduler, runner, PROMPT)
    run_one(scheduler, runner, [*PROMPT, 1])
    before = scheduler.stats()

    num_dropped = scheduler.reset_prefix_cache()

    assert (before.prefix_queries, before.prefix_hits, before.num_kept_blocks) == (25, 12, 3)
    assert num_dropped == 3
    after = scheduler.stats()
    assert (after.prefix_queries, after.prefix_hits, after.num_kept_blocks) == (25, 12, 0)
    assert run_one(scheduler, runner, PROMPT).num_cached_tokens == 0


def test_prefix_cache_reset_beside_a_running_request_harms_it_not() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    request = core_request("a", PROMPT, 9, ignore_eos=True)
    scheduler.add_request(request)

    tokens, _ = run_to_end(
        scheduler, runner, between=lambda step: scheduler.reset_prefix_cache() and None
    )

    assert tokens["a"] == alone(request)


def test_prefix_cache_request_for_prompt_logprobs_computes_every_token() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    run_one(scheduler, runner, PROMPT)
    runner.steps.clear()

    run_one(scheduler, runner, PROMPT, prompt_logprobs=1)

    assert computed(runner.steps) == len(PROMPT)


@pytest.mark.parametrize("length", [1, 4, 6, 8, 9])
def test_fork_shares_the_prompt_and_computes_one_token(length: int) -> None:
    """Answers of one prompt: it is prefilled once, each further answer computes its last token."""
    scheduler = scheduler_of(32, has_prefix_cache=False)
    runner = runner_of(scheduler)
    prompt = PROMPT[:length]
    requests = [core_request("0", prompt, 7, seed=0, ignore_eos=True)]
    requests += [
        core_request(str(i), prompt, 7, seed=i, ignore_eos=True, fork_of="0") for i in (1, 2)
    ]
    for request in requests:
        scheduler.add_request(request)

    tokens, _ = run_to_end(scheduler, runner)

    assert tokens == {request.request_id: alone(request) for request in requests}
    assert computed(runner.steps) == length + 2 + 3 * 6
    copies = [copy for step in runner.steps for copy in step.block_copies]
    assert len(copies) == (2 if (length - 1) % 4 else 0)


def test_fork_waits_for_its_parent_and_holds_nobody_up() -> None:
    scheduler = scheduler_of(32, max_prefill_chunk=4, max_num_seqs=8, max_num_batched_tokens=16)
    scheduler.add_request(core_request("0", PROMPT, 4))
    scheduler.add_request(core_request("1", PROMPT, 4, fork_of="0"))
    scheduler.add_request(core_request("other", [1, 2], 4))

    assert list(scheduler.schedule().num_scheduled_tokens) == ["0", "other"]


def test_fork_outlives_its_parent() -> None:
    scheduler = scheduler_of(32)
    runner = runner_of(scheduler)
    child = core_request("1", PROMPT, 7, seed=3, fork_of="0", ignore_eos=True)
    scheduler.add_request(core_request("0", PROMPT, 7, ignore_eos=True))
    scheduler.add_request(child)
    for _ in range(2):
        step = scheduler.schedule()
        scheduler.update_from_output(step, runner.execute_model(step))

    scheduler.abort_requests(["0"])
    scheduler.check_integrity()
    tokens, _ = run_to_end(scheduler, runner)

    assert tokens["1"] == alone(child)[-len(tokens["1"]) :]


@pytest.mark.parametrize("n", range(1, 9))
def test_fork_more_answers_than_rows_all_come(n: int) -> None:
    """With two rows."""
    scheduler = scheduler_of(16, max_num_seqs=2)
    runner = runner_of(scheduler)
    for i in range(n):
        scheduler.add_request(
            core_request(str(i), PROMPT, 3, seed=i, ignore_eos=True, fork_of="0" if i else None)
        )

    tokens, reasons = run_to_end(scheduler, runner)

    assert len(tokens) == n
    assert set(reasons.values()) == {"length"}
