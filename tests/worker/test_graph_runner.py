"""Plans of decode steps, with a backend of the test that records the calls it is given."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.dispatch import Candidate, all_ops, use_backend
from pyvt.dispatch.backend import Backend
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import load_case, write_case
from pyvt.worker.graph_runner import MAX_PLAN_TOKENS, MAX_PLANS, GraphRunner
from pyvt.worker.kv_cache import allocate_kv_cache
from pyvt.worker.prepare_inputs import StepInputs

BLOCK_SIZE = 4


@dataclass
class RecordingBackend:
    """Every op of the reference again, under another name; a started plan collects the calls."""

    plans: list["ListPlan"] = field(default_factory=list)

    def kernel(self, reference: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            reference(*args)
            for plan in self.plans:
                if plan.is_started:
                    plan.calls.append((reference, args))

        return run

    def make_plan(self) -> "ListPlan":
        self.plans.append(ListPlan())
        return self.plans[-1]


@dataclass
class ListPlan:
    calls: list[Any] = field(default_factory=list)
    is_started: bool = False

    def start(self) -> None:
        self.is_started = True

    def stop(self) -> None:
        self.is_started = False

    def run(self) -> None:
        for kernel, args in self.calls:
            kernel(*args)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[RecordingBackend]:
    """The recording backend, registered for all ops but those the test names."""
    made = RecordingBackend()
    left_out = getattr(request, "param", ())
    added = []
    for op in all_ops():
        reference = op.of_backend("numpy")
        assert reference is not None
        if op.name not in left_out:
            added.append((op, Candidate("recording", "host", made.kernel(reference.kernel), 1)))
            op.register(added[-1][1])
    from pyvt.dispatch import table

    table._selection.known.add("recording")
    use_backend("recording")
    yield made
    use_backend("numpy")
    table._selection.known.remove("recording")
    for op, candidate in added:
        op.candidates.remove(candidate)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderForCausalLM:
    path: Path = write_case(MODEL_CASES_BY_NAME["qwen3"], tmp_path_factory.mktemp("plans"))
    return load_case(path).model


def _step(model: DecoderForCausalLM, num_reqs: int, length: int, caches: Any) -> StepInputs:
    """One decode step of requests of one length, whose blocks lie one after the other."""
    num_blocks = -(-length // BLOCK_SIZE)
    tables = np.arange(num_reqs * 8, dtype=np.int32).reshape(1, num_reqs, 8)[:, :, :num_blocks]
    last = np.full(num_reqs, length - 1)
    batch = ForwardBatch(
        num_tokens=num_reqs,
        num_reqs=num_reqs,
        max_seqlen_q=1,
        max_seq_len=length,
        positions=last,
        slot_mapping=tables[:, :, -1].astype(np.int64) * BLOCK_SIZE + last % BLOCK_SIZE,
        block_tables=tables,
        seq_lens=np.full(num_reqs, length, np.int32),
        cu_seqlens_q=np.arange(num_reqs + 1, dtype=np.int32),
        logits_indices=np.arange(num_reqs, dtype=np.int32),
        kv_caches=caches,
        layer_groups=(0,) * len(caches),
    )
    ids = (np.arange(num_reqs) * 7 + length) % model.config.vocab_size
    return StepInputs(input_ids=ids, batch=batch, requests=(), wanted=())


def _caches(model: DecoderForCausalLM) -> Any:
    return allocate_kv_cache(model.kv_cache_specs(), 32, BLOCK_SIZE).layers


def _runner(model: DecoderForCausalLM, backend: RecordingBackend) -> GraphRunner:
    return GraphRunner(model, 8, Backend(name="recording", make_plan=backend.make_plan))


@pytest.mark.parametrize("num_reqs", [1, 3])
def test_replay_equals_eager_to_the_bit(
    model: DecoderForCausalLM, backend: RecordingBackend, num_reqs: int
) -> None:
    eager_caches, plan_caches = _caches(model), _caches(model)
    runner = _runner(model, backend)

    for length in range(1, 12):
        eager = _step(model, num_reqs, length, eager_caches)
        want = model.forward(eager.input_ids, eager.batch)
        got = runner.forward(_step(model, num_reqs, length, plan_caches))
        np.testing.assert_array_equal(got, want)

    assert runner.num_replays == 10
    assert runner.num_eager_decodes == 0


def _verify_step(
    model: DecoderForCausalLM, computed: tuple[int, ...], counts: tuple[int, ...], caches: Any
) -> StepInputs:
    """A step of several tokens a request, all with logits; blocks as in ``_step``."""
    num_reqs, num_tokens = len(counts), sum(counts)
    rows = np.repeat(np.arange(num_reqs), counts)
    places = np.concatenate([c + np.arange(n) for c, n in zip(computed, counts, strict=True)])
    tables = np.arange(num_reqs * 8, dtype=np.int32).reshape(1, num_reqs, 8)
    blocks = tables[:, rows, places // BLOCK_SIZE].astype(np.int64)
    batch = ForwardBatch(
        num_tokens=num_tokens,
        num_reqs=num_reqs,
        max_seqlen_q=max(counts),
        max_seq_len=int(max(np.add(computed, counts))),
        positions=places,
        slot_mapping=blocks * BLOCK_SIZE + places % BLOCK_SIZE,
        block_tables=tables,
        seq_lens=np.add(computed, counts).astype(np.int32),
        cu_seqlens_q=np.cumsum((0, *counts), dtype=np.int32),
        logits_indices=np.arange(num_tokens, dtype=np.int32),
        kv_caches=caches,
        layer_groups=(0,) * len(caches),
    )
    ids = (rows * 7 + places * 3) % model.config.vocab_size
    return StepInputs(input_ids=ids, batch=batch, requests=(), wanted=())


def test_steps_that_verify_share_a_plan_however_the_drafts_are_shared_out(
    model: DecoderForCausalLM, backend: RecordingBackend
) -> None:
    eager_caches, plan_caches = _caches(model), _caches(model)
    runner = _runner(model, backend)

    computed = np.zeros(2, np.int64)
    for counts in ((1, 4), (4, 1), (2, 3), (3, 2)):
        steps = [
            _verify_step(model, tuple(computed), counts, caches)
            for caches in (eager_caches, plan_caches)
        ]
        want = model.forward(steps[0].input_ids, steps[0].batch)
        got = runner.forward(steps[1])
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(runner.logits(steps[1], got), model.compute_logits(want))
        computed += counts

    assert (runner.num_replays, len(backend.plans)) == (3, 1)


def test_short_ends_of_prompts_share_a_plan_with_a_head_of_one_row(
    model: DecoderForCausalLM, backend: RecordingBackend
) -> None:
    eager_caches, plan_caches = _caches(model), _caches(model)
    runner = _runner(model, backend)

    for turn in range(3):
        steps = [
            _verify_step(model, (4 * turn,), (4,), caches) for caches in (eager_caches, plan_caches)
        ]
        for step in steps:
            step.batch.logits_indices = np.array([3], np.int32)
        want = model.forward(steps[0].input_ids, steps[0].batch)
        got = runner.forward(steps[1])
        np.testing.assert_array_equal(got, want)
        logits = runner.logits(steps[1], got)
        np.testing.assert_array_equal(logits, model.compute_logits(want[3:]))
        started = runner.start_greedy(steps[1])
        assert started is not None
        assert [found.tolist() for found in started.arrays()] == [[0], logits.argmax(1).tolist()]

    assert (runner.num_replays, len(backend.plans)) == (2, 1)


def test_shape_that_was_used_longest_ago_loses_its_plan(
    model: DecoderForCausalLM, backend: RecordingBackend
) -> None:
    caches = _caches(model)
    runner = _runner(model, backend)
    runner._recorded = {(0, i, i): None for i in range(MAX_PLANS - 1)}

    for num_reqs in (1, 2, 1, 2):
        runner.forward(_step(model, num_reqs, 1, caches))

    assert len(runner._recorded) == MAX_PLANS
    assert list(runner._recorded)[-2:] == [(1, 1, 1), (2, 2, 2)]
    assert (0, 0, 0) not in runner._recorded
    assert (len(backend.plans), runner.num_replays) == (2, 2)


@pytest.mark.parametrize("backend", [("silu_and_mul",)], indirect=True)
def test_step_with_an_op_of_the_reference_stays_eager_and_is_counted(
    model: DecoderForCausalLM, backend: RecordingBackend
) -> None:
    caches = _caches(model)
    runner = _runner(model, backend)

    for length in range(1, 4):
        runner.forward(_step(model, 1, length, caches))

    assert (runner.num_replays, runner.num_eager_decodes) == (0, 3)


def test_large_batches_and_backends_without_plans_run_eagerly(
    model: DecoderForCausalLM, backend: RecordingBackend
) -> None:
    caches = allocate_kv_cache(model.kv_cache_specs(), 300, BLOCK_SIZE).layers
    large = _step(model, MAX_PLAN_TOKENS + 1, 1, caches)

    _runner(model, backend).forward(large)
    GraphRunner(model, 8, Backend(name="numpy")).forward(_step(model, 1, 1, caches))

    assert backend.plans == []
