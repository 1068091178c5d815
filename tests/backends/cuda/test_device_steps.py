"""Steps of the engine on a device: what waits, what is launched, and what padding leaves alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pyvt.engine.llm_engine import LLMEngine
from pyvt.sampling_params import SamplingParams
from pyvt.worker.device_graphs import DeviceGraphs
from tests.backends.cuda.device_engine import engine_on
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native
from tests.engine.tiny_model import CONFIG, HYBRID_CONFIG, PAD_ROWS, write_tiny_model

pytestmark = [NEEDS_DEVICE]

# No rows of padding: where one of them is the most likely token, a step samples once more.
NUM_TOKENS = CONFIG["vocab_size"] - PAD_ROWS

DRAFTS = {"speculation": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}
PROMPTS = ([5, 6, 7], [8, 9, 8, 9, 8], [12, 5, 6, 7, 8], [40, 41], [7, 7, 7, 7, 7, 7], [30], [9])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny") / "m"
    return str(write_tiny_model(folder, vocab_size=NUM_TOKENS))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hybrid") / "m"
    return str(write_tiny_model(folder, config=HYBRID_CONFIG, vocab_size=NUM_TOKENS))


@dataclass(frozen=True)
class Counts:
    """What a step did: how often it waited, launched, and copied to the device."""

    waits: int
    launches: int
    uploads: int


def counted_step(engine: LLMEngine) -> Counts:
    module = native()
    before = module.num_waits(), module.num_launches(), module.num_uploads()
    engine.step()
    after = module.num_waits(), module.num_launches(), module.num_uploads()
    return Counts(*(b - a for a, b in zip(before, after, strict=True)))


def counts_of(path: str, num_requests: int, sampling: dict[str, Any], **settings: Any) -> Any:
    """The counts of each step but the first of some requests that decode."""
    engine = engine_on(path, NAME, **settings)
    for i, prompt in enumerate(PROMPTS[:num_requests]):
        params = SamplingParams(**({"max_tokens": 8, "ignore_eos": True, "seed": i} | sampling))
        engine.add_request(str(i), prompt, params)
    engine.step()
    found = []
    while engine.has_unfinished_requests:
        found.append(counted_step(engine))
    return found


def test_greedy_step_is_a_copy_a_launch_and_a_wait(plain: str) -> None:
    """But for the first, which captures; a block that is full changes no more than tables."""
    _, *steps = counts_of(plain, 3, {"temperature": 0.0})

    assert len(steps) == 6
    assert set(steps) == {Counts(waits=1, launches=1, uploads=1)}


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 0.8}, id="drawn"),
        pytest.param({"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, id="filtered"),
        pytest.param({"temperature": 0.0, "repetition_penalty": 1.3}, id="penalised"),
        pytest.param({"temperature": 0.7, "logprobs": 3}, id="logprobs"),
        pytest.param({"temperature": 0.0, "logit_bias": {9: 1.0}, "logprobs": 0}, id="bias"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_step_waits_once_whatever_is_sampled(
    kind: str, sampling: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found = counts_of(request.getfixturevalue(kind), 2, sampling)

    assert {step.waits for step in found} == {1}


def test_rows_that_are_drawn_and_rows_that_are_not_share_the_wait(plain: str) -> None:
    engine = engine_on(plain, NAME)
    for i, temperature in enumerate((0.0, 0.9, 0.0)):
        params = SamplingParams(
            max_tokens=5, temperature=temperature, seed=i, logprobs=2, ignore_eos=True
        )
        engine.add_request(str(i), PROMPTS[i], params)

    assert {counted_step(engine).waits for _ in range(5)} == {1}


def test_chunk_of_a_prompt_waits_for_nothing(plain: str) -> None:
    engine = engine_on(plain, NAME, max_prefill_chunk=4, max_num_batched_tokens=4, max_num_seqs=2)
    engine.add_request("a", list(range(5, 17)), SamplingParams(max_tokens=2, temperature=0.0))

    assert [counted_step(engine).waits for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_own_head_drafts_all_its_tokens_behind_one_wait(hybrid: str, num_drafts: int) -> None:
    """The first wait is for the tokens that the drafts stand behind."""
    found = counts_of(
        hybrid, 2, {"temperature": 0.0}, speculation="mtp", num_speculative_tokens=num_drafts
    )

    assert max(step.waits for step in found) == 2


@pytest.mark.parametrize(
    "num_requests", [1, 3, *(pytest.param(count, marks=pytest.mark.slow) for count in (5, 7))]
)
@pytest.mark.parametrize("drafts", [{}, DRAFTS], ids=["plain", "drafts"])
@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_graphs_on_and_off_are_equal_to_the_bit(
    kind: str, drafts: dict[str, Any], num_requests: int, request: pytest.FixtureRequest
) -> None:
    """Of the log probabilities, in batches that fill their bucket and that do not."""
    path = request.getfixturevalue(kind)
    engines = [engine_on(path, NAME, **drafts) for _ in range(2)]
    graphs = [engine.core.runner.graphs for engine in engines]
    graphs[1].is_enabled = False

    captured, eager = (logprobs_of(engine, num_requests) for engine in engines)

    assert captured == eager
    assert graphs[0].num_replays > 0
    assert graphs[1].num_replays == graphs[1].num_captures == 0


@pytest.mark.parametrize("kind", ["plain", pytest.param("hybrid", marks=pytest.mark.slow)])
@pytest.mark.parametrize("are_captured", [True, False], ids=["graphs", "eager"])
def test_overlap_on_and_off_are_equal_to_the_bit(
    kind: str, are_captured: bool, request: pytest.FixtureRequest
) -> None:
    """Through blocks that fill up, and a batch from which requests go."""
    runners: list[Any] = []
    found = []
    for is_overlapping in (True, False):
        engine = engine_on(request.getfixturevalue(kind), NAME, block_size=4)
        runners.append(engine.core.runner)
        runners[-1].is_overlapping = is_overlapping
        runners[-1].graphs.is_enabled = are_captured
        found.append(logprobs_of(engine, 3))

    assert found[0] == found[1]
    assert runners[0].graphs.num_prepared > 0
    assert runners[1].graphs.num_prepared == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_next_step_is_prepared_before_anybody_waits_for_this_one(
    plain: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    prepare = DeviceGraphs.prepare

    def prepared(graphs: DeviceGraphs, following: Any) -> None:
        waits.append(native().num_waits())
        prepare(graphs, following)

    monkeypatch.setattr(DeviceGraphs, "prepare", prepared)
    engine = engine_on(plain, NAME)
    for i in range(2):
        params = SamplingParams(max_tokens=6, temperature=temperature, seed=i, ignore_eos=True)
        engine.add_request(str(i), PROMPTS[i], params)
    before = []
    while engine.has_unfinished_requests:
        before.append(native().num_waits())
        engine.step()

    assert waits == before
    runner: Any = engine.core.runner
    # The first step has prompts, and nothing is known of the one behind it.
    assert runner.graphs.num_prepared == len(before) - 2


def logprobs_of(engine: LLMEngine, num_requests: int) -> list[Any]:
    """Tokens and log probabilities of requests, every other one greedy."""
    for i, prompt in enumerate(PROMPTS[:num_requests]):
        params = SamplingParams(
            max_tokens=5 + i, temperature=i % 2, seed=i, logprobs=2, ignore_eos=True
        )
        engine.add_request(str(i), prompt, params)
    found = {}
    while engine.has_unfinished_requests:
        found |= {output.request_id: output.outputs[0] for output in engine.step()}
    return [(found[str(i)].token_ids, found[str(i)].logprobs) for i in range(num_requests)]


def test_batches_that_shrink_share_the_graphs_of_their_buckets(plain: str) -> None:
    """Seven requests that end one by one, in buckets of 8, 4, 2 and 1."""
    engine = engine_on(plain, NAME)

    logprobs_of(engine, 7)

    graphs = engine.core.runner.graphs
    assert graphs.num_captures == 4
    assert graphs.num_replays > graphs.num_captures


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_padding_writes_no_block_and_no_state(kind: str, request: pytest.FixtureRequest) -> None:
    """After five requests in buckets of eight all that nobody holds is as it was allocated."""
    engine = engine_on(request.getfixturevalue(kind), NAME, enable_prefix_caching=False)
    for i, prompt in enumerate(PROMPTS[:5]):
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=9, ignore_eos=True, seed=i))
    for _ in range(4):
        engine.step()
    runner: Any = engine.core.runner
    cache, rows = runner.kv_cache, [runner.rows[str(i)].row for i in range(5)]
    held = set(runner.rows.block_tables[:, rows].ravel().tolist()) - {0}
    states = engine.core.scheduler.kv_cache_manager.states
    num_states = 0 if states is None else states.pool.num_blocks - states.pool.num_free_blocks

    assert held
    for layer, pair in enumerate(cache.layers):
        is_state = cache.groups[cache.layer_groups[layer]].kind == "state"
        for array in (each.numpy().astype(np.float32) for each in pair):
            written = {int(i) for i in np.flatnonzero(array.reshape(len(array), -1).any(axis=1))}
            if is_state:
                assert 0 < len(written) <= num_states
                assert 0 not in written
            else:
                assert written <= held
