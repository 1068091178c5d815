"""Scheduler: budget, chunks, order, preemption, admission; with a fake runner, by tables."""

import pytest

from pyvt.errors import RequestError
from pyvt.messages import EngineCoreRequest, ModelRunnerOutput
from pyvt.testing.fakes import fake_next_token
from tests.scheduler.requests import (
    EOS,
    core_request,
    run_step,
    run_to_end,
    runner_of,
    scheduler_of,
)


def test_scheduler_one_request_generates_the_runners_tokens() -> None:
    scheduler = scheduler_of(8)
    scheduler.add_request(core_request("a", [1, 2, 3], 3))

    tokens, reasons = run_to_end(scheduler, runner_of(scheduler))

    first = fake_next_token([1, 2, 3], 0, 1000)
    second = fake_next_token([1, 2, 3, first], 0, 1000)
    assert tokens["a"][:2] == [first, second]
    assert reasons == {"a": "length"}


@pytest.mark.parametrize(
    ("params", "forced", "tokens", "reason", "stop_reason"),
    [
        pytest.param({}, [5, EOS, 6], [5, EOS], "stop", None, id="eos"),
        pytest.param({"ignore_eos": True}, [5, EOS, 6], [5, EOS, 6], "length", None, id="ignored"),
        pytest.param({"stop_token_ids": [7]}, [5, 7, 6], [5, 7], "stop", 7, id="stop-id"),
        pytest.param({}, [5, 6, EOS], [5, 6, EOS], "stop", None, id="eos-as-last-allowed"),
        pytest.param({}, [5, 6, 7], [5, 6, 7], "length", None, id="length"),
        pytest.param({"min_tokens": 3}, [EOS, EOS, 4], [EOS, EOS, 4], "length", None, id="min"),
        pytest.param({"min_tokens": 2}, [EOS, EOS, 4], [EOS, EOS], "stop", None, id="min-reached"),
    ],
)
def test_scheduler_finish_reason(
    params: dict[str, object],
    forced: list[int],
    tokens: list[int],
    reason: str,
    stop_reason: int | None,
) -> None:
    scheduler = scheduler_of(8)
    runner = runner_of(scheduler, forced={"a": forced})
    scheduler.add_request(core_request("a", [1], 3, **params))

    outputs = [output for _ in tokens for output in run_step(scheduler, runner)]

    assert [token_id for output in outputs for token_id in output.new_token_ids] == tokens
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(tokens) - 1)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, stop_reason)
    assert scheduler.num_unfinished_requests == 0


def test_scheduler_max_tokens_one_ends_with_length() -> None:
    scheduler = scheduler_of(8)
    scheduler.add_request(core_request("a", [1, 2], 1))

    tokens, reasons = run_to_end(scheduler, runner_of(scheduler, forced={"a": [5]}))

    assert tokens == {"a": [5]}
    assert reasons == {"a": "length"}


def test_scheduler_long_prompt_runs_in_chunks_beside_decodes() -> None:
    scheduler = scheduler_of(64, max_num_batched_tokens=10, max_num_seqs=4, max_prefill_chunk=6)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("short", [1, 2], 8, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("long", range(20), 2))

    outputs = [run_step(scheduler, runner) for _ in range(4)]

    grants = [dict(step.num_scheduled_tokens) for step in runner.steps[1:]]
    assert grants == [{"short": 1, "long": 6}] * 3 + [{"short": 1, "long": 2}]
    assert [[o.request_id for o in step] for step in outputs] == [["short"]] * 3 + [
        ["short", "long"]
    ]


def test_scheduler_budget_is_shared_in_order_of_arrival() -> None:
    scheduler = scheduler_of(64, max_num_batched_tokens=10, max_num_seqs=4)
    for name in ("a", "b", "c"):
        scheduler.add_request(core_request(name, range(6), 1))

    step = scheduler.schedule()

    assert dict(step.num_scheduled_tokens) == {"a": 6, "b": 4}
    assert step.total_num_scheduled_tokens == 10


def test_scheduler_max_num_seqs_bounds_the_rows() -> None:
    scheduler = scheduler_of(64, max_num_seqs=2)
    for name in ("a", "b", "c"):
        scheduler.add_request(core_request(name, [1], 2))

    step = scheduler.schedule()

    assert list(step.num_scheduled_tokens) == ["a", "b"]
    assert scheduler.stats().num_waiting == 1


def test_scheduler_known_request_is_sent_as_a_difference() -> None:
    scheduler = scheduler_of(8, block_size=2)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("a", [1, 2], 4, ignore_eos=True))
    run_step(scheduler, runner)
    run_step(scheduler, runner)
    run_step(scheduler, runner)

    first, second, third = runner.steps

    assert (first.new_requests[0].block_ids, first.cached_requests) == (((1,),), ())
    assert second.new_requests == ()
    assert second.cached_requests[0].new_block_ids == ((2,),)
    assert second.cached_requests[0].num_computed_tokens == 2
    assert third.cached_requests[0].new_block_ids == ()


def test_scheduler_request_of_all_blocks_runs() -> None:
    """3 prompt tokens and 6 new ones write 8 slots: two blocks of four, the whole pool."""
    scheduler = scheduler_of(2)
    scheduler.add_request(core_request("a", [1, 2, 3], 6, ignore_eos=True))

    tokens, reasons = run_to_end(scheduler, runner_of(scheduler))

    assert len(tokens["a"]) == 6
    assert reasons == {"a": "length"}


def test_scheduler_request_over_all_blocks_is_refused_at_once() -> None:
    scheduler = scheduler_of(2)

    with pytest.raises(RequestError, match="need 3 KV blocks, the pool has 2") as refused:
        scheduler.add_request(core_request("a", [1, 2, 3], 7))

    assert refused.value.param == "max_tokens"
    assert scheduler.num_unfinished_requests == 0


def test_scheduler_id_in_use_is_refused() -> None:
    scheduler = scheduler_of(8)
    scheduler.add_request(core_request("a", [1], 1))

    with pytest.raises(RequestError, match="'a' is in use") as refused:
        scheduler.add_request(core_request("a", [1], 1))

    assert refused.value.param == "request_id"


def test_scheduler_preempts_the_youngest_and_computes_it_again() -> None:
    """Blocks for one and a half: the tokens of each stay those of a run alone."""
    scheduler = scheduler_of(6)
    runner = runner_of(scheduler)
    requests = [core_request(n, [i, i + 1], 18, ignore_eos=True) for i, n in enumerate("ab")]
    for request in requests:
        scheduler.add_request(request)

    tokens, reasons = run_to_end(scheduler, runner)

    assert scheduler.stats().num_preemptions > 0
    assert any(new.output_token_ids for step in runner.steps for new in step.new_requests)
    assert reasons == {"a": "length", "b": "length"}
    assert tokens == {request.request_id: alone(request) for request in requests}


def alone(request: EngineCoreRequest) -> list[int]:
    scheduler = scheduler_of(64)
    scheduler.add_request(request)
    tokens, _ = run_to_end(scheduler, runner_of(scheduler))
    return next(iter(tokens.values()))


def test_scheduler_abort_frees_blocks_in_the_same_call() -> None:
    scheduler = scheduler_of(8)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("runs", range(8), 4))
    scheduler.add_request(core_request("stays", [1], 9, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.add_request(core_request("waits", [1], 4))

    aborted = scheduler.abort_requests(["runs", "waits", "unknown"])

    assert aborted == ["runs", "waits"]
    assert scheduler.kv_cache_manager.pool.num_free_blocks == 7
    scheduler.check_integrity()
    run_step(scheduler, runner)
    assert runner.known_request_ids == {"stays"}


def test_scheduler_id_may_be_used_again_after_an_abort() -> None:
    scheduler = scheduler_of(8)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("a", [1, 2], 4, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.abort_requests(["a"])
    again = core_request("a", [7, 8, 9], 4, ignore_eos=True)
    scheduler.add_request(again)

    tokens, _ = run_to_end(scheduler, runner)

    assert tokens["a"] == alone(again)


def test_scheduler_failed_row_ends_alone() -> None:
    scheduler = scheduler_of(16)
    healthy = core_request("b", [2], 3, ignore_eos=True)
    scheduler.add_request(core_request("a", [1], 3))
    scheduler.add_request(healthy)

    tokens, reasons = run_to_end(scheduler, runner_of(scheduler, failing=frozenset({"a"})))

    assert reasons == {"a": "error", "b": "length"}
    assert tokens["a"] == []
    assert tokens["b"] == alone(healthy)


def test_scheduler_rollback_computes_the_step_again() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    requests = [core_request(n, [i], 5, ignore_eos=True) for i, n in enumerate("ab")]
    scheduler.add_request(requests[0])
    run_step(scheduler, runner)
    scheduler.add_request(requests[1])

    lost = scheduler.schedule()
    runner.execute_model(lost)
    scheduler.rollback(lost)
    scheduler.check_integrity()
    tokens, _ = run_to_end(scheduler, runner)

    assert tokens["b"] == alone(requests[1])
    assert tokens["a"] == alone(requests[0])[1:]


def test_scheduler_rollback_names_the_forgotten_again() -> None:
    scheduler = scheduler_of(16)
    runner = runner_of(scheduler)
    scheduler.add_request(core_request("gone", [1], 5, ignore_eos=True))
    scheduler.add_request(core_request("stays", [2], 5, ignore_eos=True))
    run_step(scheduler, runner)
    scheduler.abort_requests(["gone"])

    scheduler.rollback(scheduler.schedule())
    run_step(scheduler, runner)

    assert runner.known_request_ids == {"stays"}


def test_scheduler_worker_that_samples_nothing_is_an_assertion() -> None:
    scheduler = scheduler_of(8)
    scheduler.add_request(core_request("a", [1], 3))
    step = scheduler.schedule()

    with pytest.raises(AssertionError, match="mid-prompt or none"):
        scheduler.update_from_output(step, ModelRunnerOutput(sampled_token_ids={}))


def test_scheduler_abort_while_another_prefills_leaves_nothing_behind() -> None:
    """The interleave 200 times; the prefill goes on, and every block comes back."""
    scheduler = scheduler_of(64, max_num_batched_tokens=16, max_prefill_chunk=8, max_num_seqs=4)
    runner = runner_of(scheduler)

    for turn in range(200):
        long = core_request(f"long{turn}", [turn, *range(20)], 2, seed=turn, ignore_eos=True)
        scheduler.add_request(core_request(f"gone{turn}", [turn] * 5, 9, ignore_eos=True))
        run_step(scheduler, runner)
        scheduler.add_request(long)
        run_step(scheduler, runner)
        scheduler.abort_requests([f"gone{turn}"])
        tokens, reasons = run_to_end(scheduler, runner)
        assert (reasons, tokens[f"long{turn}"]) == ({f"long{turn}": "length"}, alone(long))

    pool = scheduler.kv_cache_manager.pool
    assert pool.num_free_blocks == pool.num_blocks
