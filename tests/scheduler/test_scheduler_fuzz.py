"""Random traffic through tiny pools: every request's tokens are those of a run alone."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.messages import EngineCoreRequest
from tests.scheduler.requests import core_request, run_to_end, runner_of, scheduler_of


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it arrives, and the step before which it is aborted."""

    at_step: int
    abort_step: int | None
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at_step=st.integers(0, 12),
        abort_step=st.one_of(st.none(), st.none(), st.integers(1, 30)),
        prompt=st.lists(st.integers(0, 99), min_size=1, max_size=14).map(tuple),
        max_tokens=st.integers(1, 14),
        seed=st.integers(0, 3),
    ),
    min_size=1,
    max_size=10,
)


def request_of(index: int, arrival: Arrival) -> EngineCoreRequest:
    return core_request(str(index), arrival.prompt, arrival.max_tokens, seed=arrival.seed)


def solo(request: EngineCoreRequest) -> list[int]:
    scheduler = scheduler_of(64)
    scheduler.add_request(request)
    tokens, _ = run_to_end(scheduler, runner_of(scheduler))
    return tokens[request.request_id]


@settings(max_examples=80, deadline=None)
@given(
    arrivals=ARRIVALS,
    block_size=st.sampled_from([1, 2, 4]),
    spare_blocks=st.integers(0, 6),
    max_num_seqs=st.integers(1, 5),
    budget=st.integers(5, 12),
    chunk=st.integers(1, 6),
)
def test_scheduler_random_traffic_equals_solo_runs(
    arrivals: list[Arrival],
    block_size: int,
    spare_blocks: int,
    max_num_seqs: int,
    budget: int,
    chunk: int,
) -> None:
    # The largest request fills 14 + 14 - 1 slots, so the pool holds it with few blocks to spare.
    scheduler = scheduler_of(
        -(-27 // block_size) + spare_blocks,
        block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_prefill_chunk=chunk,
    )
    runner = runner_of(scheduler)
    requests = {str(i): (request_of(i, a), a) for i, a in enumerate(arrivals)}
    last_event = max(max(a.at_step, a.abort_step or 0) for a in arrivals)
    aborted: set[str] = set()
    # A request that keeps the engine from stopping before the last arrival.
    scheduler.add_request(core_request("idle", [0], 1))

    def deliver(step: int) -> None:
        for request_id, (request, arrival) in requests.items():
            if arrival.at_step == step:
                scheduler.add_request(request)
            if arrival.abort_step == step:
                aborted.update(scheduler.abort_requests([request_id]))
        if step < last_event and not scheduler.num_unfinished_requests:
            scheduler.add_request(core_request(f"idle{step}", [0], 1))

    tokens, reasons = run_to_end(scheduler, runner, between=deliver)

    for request_id, (request, _) in requests.items():
        if request_id in aborted:
            got = tokens.get(request_id, [])
            assert got == solo(request)[: len(got)]
        else:
            assert reasons[request_id] in ("stop", "length")
            assert tokens[request_id] == solo(request)
    assert scheduler.kv_cache_manager.pool.num_free_blocks == (
        scheduler.kv_cache_manager.pool.num_blocks
    )
