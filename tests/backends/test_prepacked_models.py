"""Whole tiny models with prepacked weights: equal to the reference, to the bit to themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.config.model import ModelConfig
from pyvt.dispatch import use_backend
from pyvt.engine.build import build_engine
from pyvt.models.registry import load_model
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.dtype import BF16, F16, F32, F64, Q4_0, Q4_1, Q8_0, DType
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.testing.checkpoints import write_gguf
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import all_logits, gguf_metadata, load_case, write_case
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare
from pyvt.weights.gguf_names import gguf_name
from pyvt.weights.resolve import open_model
from tests.engine.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.native,
]

CASES = ("llama_biases", "llama_tied", "qwen3", "qwen3_tied", "qwen3_moe", "qwen3_5_mtp")
TIED = MODEL_CASES_BY_NAME["qwen3_tied"]


@pytest.fixture(autouse=True)
def numpy_again() -> Iterator[None]:
    """The reference, selected again after the test."""
    yield
    use_backend("numpy")


def _mixed_gguf(path: Path) -> Path:
    """Write the tied case with q, k, v and its MLP in blocks of different formats."""
    rng, config = np.random.default_rng(0), ModelConfig.from_hf(TIED.config)
    formats = {"q_proj": Q4_1, "k_proj": Q8_0, "v_proj": Q4_1, "up_proj": Q4_0, "embed": Q8_0}
    tensors: dict[str, Any] = {}
    for name, array in TIED.weights().items():
        block_format = next((f for part, f in formats.items() if part in name), None)
        stored = gguf_name("qwen3", name)
        assert stored is not None, f"{name}: has a name in GGUF"
        is_blocks = block_format is not None and array.shape[-1] % 32 == 0
        tensors[stored] = random_weight(rng, block_format, *array.shape) if is_blocks else array
    return write_gguf(path, gguf_metadata(config), tensors)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_prepacked_model_equals_the_reference(name: str, dtype: DType, tmp_path: Path) -> None:
    case = MODEL_CASES_BY_NAME[name]
    path = write_case(case, tmp_path / "m", dtype=dtype)
    prompts = list(case.prompts().values())[:2]
    want = all_logits(load_case(path, expand="never").model, prompts)
    use_backend("cpu")

    model = load_case(path, expand="never").model

    got = all_logits(model, prompts)
    steps = [[1, 0], [5, 12], [3, 0], [3, 11]]
    chunked = all_logits(model, prompts, steps=steps)
    for ours, reference, again in zip(got, want, chunked, strict=True):
        difference = compare(ours, reference, "model_self", "f32")
        assert difference.is_within, difference.reason
        np.testing.assert_array_equal(ours.view(np.uint32), again.view(np.uint32))


@pytest.mark.parametrize("act", ["none", "q8"])
def test_prepacked_model_of_mixed_blocks(act: str, tmp_path: Path) -> None:
    path = _mixed_gguf(tmp_path / "m.gguf")
    ids = np.arange(20)
    want = all_logits(load_case(path, expand="never", act=act).model, [(ids, ids)])[0]
    use_backend("cpu")

    model = load_case(path, expand="never", act=act).model

    qkv = model.model.layers[0].self_attn.qkv_proj.weight
    assert [type(part) for part in qkv.parts] == [PackedTensor] * 3
    got = all_logits(model, [(ids, ids)])[0]
    op_class = "model_self" if act == "none" else "q8_against_none"
    difference = compare(got, want, op_class, "f32")
    assert difference.is_within, difference.reason
    chunked = all_logits(model, [(ids, ids)], steps=[[1], [2], [17]])[0]
    np.testing.assert_array_equal(got.view(np.uint32), chunked.view(np.uint32))


def test_tied_table_is_kept_once_as_packed(tmp_path: Path) -> None:
    path = write_case(TIED, tmp_path / "m", dtype=BF16)
    use_backend("cpu")

    loaded = load_case(path, expand="never")

    table = loaded.model.model.embed_tokens.weight
    assert isinstance(table.data, PackedTensor)
    parameters = {id(parameter): parameter for _, parameter, _ in loaded.model.named_slots()}
    kept = sum(parameter.nbytes for parameter in parameters.values())
    assert loaded.report.resident_bytes == kept


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
def test_engine_keeps_no_page_of_the_file_of_a_tied_model(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", tie_word_embeddings=True)

    engine = build_engine(engine_config(str(folder), backend="cpu", max_model_len=32))
    engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    while engine.has_unfinished_requests:
        engine.step()

    assert _mapped_kib(folder) == 0


def _mapped_kib(folder: Path) -> int:
    """Return the KiB of the folder's mapped files that are in the memory of this process."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_inside = str(folder) in line
        elif is_inside and name == "Rss:":
            total += int(values[0])
    return total


def test_model_in_f64_is_not_packed(tmp_path: Path) -> None:
    path = write_case(TIED, tmp_path / "m")
    use_backend("cpu")

    model = load_model(open_model(path), dtype=F64, expand="never", max_positions=64).model

    assert isinstance(model.model.embed_tokens.weight.data, np.ndarray)
