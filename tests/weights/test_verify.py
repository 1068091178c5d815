"""verify_model finds values that are not finite and layers that differ."""

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from pyvt.tensor.dtype import GGUF_BLOCKS, MXFP4, NVFP4, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import write_case
from pyvt.weights import open_model, verify, verify_model
from pyvt.weights.verify import count_not_finite

F16_FORMATS = [dtype for dtype in GGUF_BLOCKS if dtype not in (MXFP4, NVFP4)]


def folder(path: Path, **tensors: Any) -> Any:
    return open_model(write_safetensors(path, tensors, {}))


def block(dtype: DType) -> QuantTensor:
    """Return two rows of two zero blocks."""
    blocks = np.zeros((2, 2 * dtype.block_bytes), np.uint8)
    return QuantTensor(dtype, (2, 2 * dtype.block_size), blocks)


def test_verify_sound_model_finds_nothing(smollm2_path: Path) -> None:
    assert list(verify_model(open_model(smollm2_path))) == []


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        (np.float64, np.nan),
        (np.float32, np.nan),
        (np.float32, -np.inf),
        (np.float16, np.inf),
        (ml_dtypes.bfloat16, np.nan),
        (ml_dtypes.bfloat16, -np.inf),
        (ml_dtypes.float8_e4m3fn, np.nan),
        (ml_dtypes.float8_e5m2, np.inf),
    ],
)
def test_verify_float_that_is_not_finite_is_found(dtype: Any, bad: float, tmp_path: Path) -> None:
    values = np.linspace(-448, 448, 64).astype(dtype)
    broken = values.copy()
    broken[7] = bad

    findings = list(verify_model(folder(tmp_path, sound=values, broken=broken)))

    assert [finding.tensor for finding in findings] == ["broken"]
    assert str(findings[0]) == "model.safetensors: broken: NaN or infinite values: 1"


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_])
def test_verify_integers_are_never_bad(dtype: Any, tmp_path: Path) -> None:
    assert list(verify_model(folder(tmp_path, a=np.full(8, -1).astype(dtype)))) == []


@pytest.mark.parametrize("dtype", F16_FORMATS, ids=lambda dtype: dtype.name)
def test_verify_finds_the_f16_words_that_make_a_block_nan(dtype: DType) -> None:
    kind = gguf.GGMLQuantizationType(dtype.gguf_id)
    tensor = block(dtype)
    for offset in range(0, dtype.block_bytes - 1, 2):
        tensor.blocks[...] = 0
        tensor.blocks[1, dtype.block_bytes + offset :][:2] = (0x00, 0x7E)

        is_nan = bool(np.isnan(gguf.quants.dequantize(tensor.blocks, kind)).any())

        assert count_not_finite(tensor) == int(is_nan), offset


@pytest.mark.parametrize(("dtype", "byte"), [(MXFP4, 0xFF), (NVFP4, 0x80)])
def test_verify_finds_scales_out_of_range(dtype: DType, byte: int) -> None:
    tensor = block(dtype)
    sound = count_not_finite(tensor)
    tensor.blocks[0, 0] = byte

    assert sound == 0
    assert count_not_finite(tensor) == 1


@pytest.mark.parametrize("chunk_bytes", [40, 64, 1000])
def test_verify_counts_over_chunks(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "CHUNK_BYTES", chunk_bytes)
    values = np.zeros(100, np.float32)
    values[::9] = np.nan
    packed = QuantTensor(GGUF_BLOCKS[0], (50, 32), np.zeros((50, 18), np.uint8))
    packed.blocks[::7, 1] = 0x7C

    assert count_not_finite(values) == 12
    assert count_not_finite(packed) == 8


def test_verify_block_with_a_bad_scale_names_the_tensor(tmp_path: Path) -> None:
    tensor = block(GGUF_BLOCKS[0])
    tensor.blocks[:, 1] = 0x7C
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen3"}, {"a": tensor})

    findings = [str(finding) for finding in verify_model(open_model(path))]

    assert findings == ["m.gguf: a: NaN or infinite block scales: 2"]


def test_verify_layer_without_a_tensor_is_found(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(3)]
    names += [f"model.layers.{i}.mlp.down_proj.weight" for i in (0, 2)]
    tensors = dict.fromkeys(names, np.zeros(2, np.float32))

    findings = [finding.tensor for finding in verify_model(folder(tmp_path, **tensors))]

    assert findings == ["model.layers.1.mlp.down_proj.weight"]


@pytest.mark.parametrize("marked", ["", "experts."])
def test_verify_layer_that_is_not_there_is_found(tmp_path: Path, marked: str) -> None:
    names = [f"model.layers.{i}.mlp.{marked}up_proj.weight" for i in (0, 1, 10**9)]
    tensors = dict.fromkeys(names, np.zeros(2, np.float32))

    findings = [finding.tensor for finding in verify_model(folder(tmp_path, **tensors))]

    assert findings == [f"model.layers.2.mlp.{marked}up_proj.weight"]


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", ["qwen3_moe_some_dense", "qwen3_5", "qwen3_5_moe"])
def test_verify_layers_of_several_kinds_are_sound(tmp_path: Path, kind: str, name: str) -> None:
    path = write_case(MODEL_CASES_BY_NAME[name], tmp_path, kind=kind)

    assert list(verify_model(open_model(path))) == []


def test_verify_layer_of_another_shape_is_found(tmp_path: Path) -> None:
    tensors = {
        f"model.layers.{i}.mlp.up_proj.weight": np.zeros((2, 4 - i // 2), np.float32)
        for i in range(3)
    }

    findings = [str(finding) for finding in verify_model(folder(tmp_path, **tensors))]

    assert findings == [
        "model.safetensors: model.layers.2.mlp.up_proj.weight: shape (2, 3), "
        "model.layers.0.mlp.up_proj.weight has (2, 4)"
    ]
