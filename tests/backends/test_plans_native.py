"""Whole models through plans: the bits of the eager forward, whatever batch, chunk or thread."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import selected_backend
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import all_hidden, load_case, write_case
from pyvt.worker.graph_runner import GraphRunner
from pyvt.worker.prepare_inputs import StepInputs

pytestmark = [
    pytest.mark.native,
]

Array = np.ndarray[Any, Any]
NUM_TOKENS = 21
NUM_SEQUENCES = 3


class Planned:
    """A model whose forward goes through a GraphRunner; keeps the logits of replayed steps."""

    def __init__(self, model: DecoderForCausalLM) -> None:
        self.model = model
        self.graphs = GraphRunner(model, 16, selected_backend())
        self.replayed: list[tuple[Array, Array, list[int] | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, input_ids: Array, batch: ForwardBatch) -> Array:
        """Return hidden states that stay valid."""
        step = StepInputs(input_ids=input_ids, batch=batch, requests=(), wanted=())
        before = self.graphs.num_replays
        hidden = self.graphs.forward(step).copy()
        if self.graphs.num_replays > before:
            logits = self.graphs.logits(step, hidden).copy()
            started = self.graphs.start_greedy(step)
            assert started is not None, "a plan ran"
            num_bad, best = started.arrays()
            assert not num_bad.any()
            greedy = best if len(best) == len(logits) else best[step.batch.logits_indices]
            self.replayed.append((hidden, logits, greedy.tolist()))
        return hidden


@pytest.fixture(scope="module", params=["qwen3_layer_types", "qwen3_moe", "qwen3_5_moe"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DecoderForCausalLM]:
    """Windows in two of three layers, experts, or these and linear attention; a head of its own."""
    case = MODEL_CASES_BY_NAME[request.param]
    use_backend("cpu")
    yield load_case(write_case(case, tmp_path_factory.mktemp("m")), expand="never").model
    use_backend("numpy")


@pytest.fixture(scope="module")
def sequences(model: DecoderForCausalLM) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, model.config.vocab_size, (NUM_SEQUENCES, NUM_TOKENS))
    return [(row, np.arange(NUM_TOKENS)) for row in ids]


@pytest.fixture(scope="module")
def alone(model: DecoderForCausalLM, sequences: list[tuple[Array, Array]]) -> list[Array]:
    """The hidden states of each sequence by itself, in one pass, on one thread."""
    return [all_hidden(model, [sequence])[0] for sequence in sequences]


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint32)


def _same_bits(got: Sequence[Array], want: Sequence[Array]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(_bits(ours), _bits(theirs[: len(ours)]))


def test_replay_equals_eager_to_the_bit(
    model: DecoderForCausalLM, sequences: list[tuple[Array, Array]], alone: list[Array]
) -> None:
    planned: Any = Planned(model)

    got = all_hidden(planned, sequences, [[1] * NUM_SEQUENCES] * NUM_TOKENS)

    _same_bits(got, alone)
    assert planned.graphs.num_replays == NUM_TOKENS - 1
    for hidden, logits, tokens in planned.replayed:
        want = model.compute_logits(hidden)
        np.testing.assert_array_equal(_bits(logits), _bits(want))
        assert tokens == want.argmax(axis=1).tolist()


def test_plans_of_several_sizes_take_turns(
    model: DecoderForCausalLM, sequences: list[tuple[Array, Array]], alone: list[Array]
) -> None:
    planned: Any = Planned(model)
    turns = [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]

    got = all_hidden(planned, sequences, turns * 3)

    _same_bits(got, alone)
    assert planned.graphs.num_replays == 12


def test_buffers_of_a_plan_are_those_of_a_layer_or_two(
    model: DecoderForCausalLM, sequences: list[tuple[Array, Array]]
) -> None:
    planned: Any = Planned(model)
    config = model.config

    all_hidden(planned, sequences[:1], [[1]] * 3)

    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = 4 * (6 * config.hidden_size + 2 * heads + 3 * config.intermediate_size)
    assert planned.graphs.pool.nbytes < 2 * (layer + 4 * config.vocab_size) + 64 * 40


@st.composite
def _passes(draw: st.DrawFn) -> list[list[int]]:
    """Steps that take each sequence from its start to somewhere, in chunks of any size."""
    left = [draw(st.integers(1, NUM_TOKENS)) for _ in range(NUM_SEQUENCES)]
    steps = []
    while any(left):
        step = [draw(st.integers(0, min(count, 9))) for count in left]
        if not any(step):
            step = [min(count, 1) for count in left]
        left = [count - taken for count, taken in zip(left, step, strict=True)]
        steps.append(step)
    return steps


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=_passes(), num_threads=st.integers(1, 4))
def test_bits_depend_on_no_batch_chunk_or_thread(
    model: DecoderForCausalLM,
    sequences: list[tuple[Array, Array]],
    alone: list[Array],
    steps: list[list[int]],
    num_threads: int,
) -> None:
    from pyvt.backends.cpu import _native

    planned: Any = Planned(model)
    _native.set_num_threads(num_threads)
    try:
        got = all_hidden(planned, sequences, steps)
    finally:
        _native.set_num_threads(0)

    _same_bits(got, alone)
