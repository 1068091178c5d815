"""Engines of one process: in threads of their own, on backends of their own."""

import threading
from pathlib import Path
from typing import Any

import pytest

from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from tests.engine.tiny_model import write_tiny_model

pytestmark = [pytest.mark.native]

PROMPTS = [[5, 6, 7, 8] * 12, [9, 8, 7] * 10, [3]]
PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=3)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path)


def llm_of(path: Path, backend: str) -> LLM:
    return LLM(str(path), backend=backend, enable_prefix_caching=False)


def answers(llm: LLM) -> list[Any]:
    """Return tokens and log-probabilities, to the bit."""
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], PARAMS)
    return [(o.outputs[0].token_ids, repr(o.outputs[0].logprobs)) for o in outputs]


@pytest.mark.parametrize("backends", [("cpu", "cpu"), ("numpy", "numpy"), ("cpu", "numpy")])
def test_engines_in_threads_answer_as_alone(tiny: Path, backends: tuple[str, str]) -> None:
    want = [answers(llm_of(tiny, backend)) for backend in backends]
    got: dict[tuple[int, int], list[Any]] = {}
    for turn in range(4):
        llms = [llm_of(tiny, backend) for backend in backends]
        start = threading.Barrier(len(llms))

        def run(turn: int, i: int, llm: LLM, start: threading.Barrier) -> None:
            start.wait()
            got[turn, i] = answers(llm)

        threads = [
            threading.Thread(target=run, args=(turn, i, llm, start)) for i, llm in enumerate(llms)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert got == {(turn, i): want[i] for turn in range(4) for i in range(len(backends))}


def test_engines_that_are_built_side_by_side_have_the_backend_that_they_asked_for(
    tiny: Path,
) -> None:
    backends = ("cpu", "numpy") * 2
    want = {backend: answers(llm_of(tiny, backend)) for backend in backends}
    got: list[tuple[str, list[Any]]] = []
    start = threading.Barrier(len(backends))

    def run(backend: str) -> None:
        start.wait()
        for _ in range(3):
            got.append((backend, answers(llm_of(tiny, backend))))

    threads = [threading.Thread(target=run, args=(backend,)) for backend in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 12
    assert all(answer == want[backend] for backend, answer in got)


def test_engine_keeps_its_backend_when_another_one_is_built(tiny: Path) -> None:
    llm = llm_of(tiny, "cpu")
    want = answers(llm)

    llm_of(tiny, "numpy")

    assert answers(llm) == want
