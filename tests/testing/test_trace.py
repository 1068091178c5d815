"""Trace: nothing between equal sides, and the very place where one is wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.dispatch import Candidate, get_op
from pyvt.errors import CheckpointError, ConfigError
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import load_case, write_case
from pyvt.testing.shape_models import ShapeModel, write_shape_gguf
from pyvt.testing.trace import Shadow, dump_differences, read_dump, shadow_run, trace_parity


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(MODEL_CASES_BY_NAME["qwen3"], tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="module")
def model(path: Path) -> DecoderForCausalLM:
    return load_case(path).model


@pytest.fixture
def faulty_rotation() -> Iterator[None]:
    """A backend whose only kernel is wrong from the second call on: in layer 1 of the model."""
    op = get_op("rotate_and_cache")
    reference = op.of_backend("numpy")
    assert reference is not None
    calls = []

    def kernel(q: Any, *rest: Any) -> None:
        calls.append(q)
        reference.kernel(q, *rest)
        if len(calls) > 1:
            q *= 1.001

    candidate = Candidate("faulty", "host", kernel, 1)
    op.register(candidate)
    yield
    op.candidates.remove(candidate)


def test_shadow_of_the_reference_differs_nowhere(model: DecoderForCausalLM) -> None:
    shadow, logits = shadow_run(model, [1, 2, 3], "numpy", "numpy")

    assert shadow.first is None
    assert len(logits) == 3
    assert shadow.num_compared > 20
    assert shadow.num_without_kernel == 0


@pytest.mark.usefixtures("faulty_rotation")
def test_shadow_names_the_first_wrong_op(model: DecoderForCausalLM) -> None:
    shadow, _ = shadow_run(model, [1, 2, 3], "numpy", "faulty")

    assert shadow.first is not None
    assert shadow.first.where == "model.layers.1.self_attn.q_norm rotate_and_cache"


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_dump_of_transformers_is_met_after_every_layer(
    name: str, goldens_root: Path, tmp_path: Path
) -> None:
    loaded = load_case(write_case(MODEL_CASES_BY_NAME[name], tmp_path))
    dump = read_dump(goldens_root / "trace" / f"{name}.npz")

    found = dump_differences(loaded.model, dump["prompt_ids"].tolist(), dump, "numpy")

    assert [where for where, _ in found][-1] == "logits"
    assert len(found) == loaded.config.num_layers + 1
    assert [where for where, difference in found if not difference.is_within] == []


def test_dump_that_differs_names_the_layer(path: Path, goldens_root: Path, tmp_path: Path) -> None:
    dump = read_dump(goldens_root / "trace" / "qwen3.npz")
    dump["layer.1"] = dump["layer.1"] * np.float32(1.01)
    np.savez(tmp_path / "bent.npz", **dump)
    lines: list[str] = []

    code = trace_parity(str(path), "", "numpy", str(tmp_path / "bent.npz"), print=lines.append)

    assert code == 1
    assert lines[-1] == "trace numpy against bent.npz: first at model.layers.1"


def test_row_of_large_values_is_judged_by_its_size() -> None:
    """A product of a row of 1,000 may be off by a thousand times the bound of a row of 1."""
    op = get_op("linear")
    reference = op.of_backend("numpy")
    assert reference is not None
    shadow = Shadow(backend="late", names={})
    off = Candidate("late", "host", lambda out, *rest: _off_by(out, 2e-3, rest), 1)
    op.register(off)
    weight = np.ones((3, 4), np.float32)
    try:
        for size, is_within in ((1000.0, True), (1.0, False)):
            x = np.array([[size, -size, 1e-3, 0]], np.float32)
            shadow(op, reference, (np.empty((1, 3), np.float32), x, weight, None))
            assert (shadow.first is None) is is_within
    finally:
        op.candidates.remove(off)


def _off_by(out: Any, error: float, rest: tuple[Any, ...]) -> None:
    reference = get_op("linear").of_backend("numpy")
    assert reference is not None
    reference.kernel(out, *rest)
    out += np.float32(error)


@pytest.mark.native
@pytest.mark.parametrize(("a", "b"), [("numpy", "cpu"), ("cpu", "numpy")])
@pytest.mark.parametrize("act", ["none", "q8"])
def test_trace_of_packed_weights_finds_no_difference(
    a: str, b: str, act: str, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.gguf"
    write_shape_gguf(file, ShapeModel.named("shape:tiny:q4_k_m"))
    lines: list[str] = []

    code = trace_parity(str(file), "hello", a, b, act=act, print=lines.append)

    assert (code, lines[-1]) == (0, "no difference")
    assert "5 tokens" in lines[0]
    assert "0 without a kernel" in lines[0]


def test_trace_unknown_backend_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="'tpu' is unknown"):
        trace_parity(str(path), "x", "numpy", "tpu", print=print)


def test_trace_file_that_is_no_dump_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 not a zip")

    with pytest.raises(CheckpointError, match=r"x\.npz"):
        trace_parity(str(path), "", "numpy", str(tmp_path / "x.npz"), print=print)


def test_trace_dump_of_another_model_is_refused(path: Path, tmp_path: Path) -> None:
    arrays = {"prompt_ids": np.arange(3), "layer.0": np.zeros((3, 4)), "logits": np.zeros((3, 9))}
    np.savez(tmp_path / "other.npz", **arrays)

    with pytest.raises(CheckpointError, match="expected one of the same model"):
        trace_parity(str(path), "", "numpy", str(tmp_path / "other.npz"), print=print)
