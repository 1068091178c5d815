"""Quantized checkpoints of Hugging Face: every weight is its formula's value, to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.errors import CheckpointError, ConfigError, ShapeError, UnsupportedError
from pyvt.models.registry import check_model, model_config
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_runs import all_logits, load_case
from pyvt.weights.quantized.scheme import scheme_of
from pyvt.weights.resolve import ModelFiles, open_model
from pyvt.weights.verify import verify_model
from tests.convert.tiny_source import tiny_case
from tests.weights.quantized import packers
from tests.weights.quantized.packers import FORMS

Array = np.ndarray[Any, Any]
STEM = "model.layers.0.mlp.up_proj"
# Matrices that quantizers leave as they are: routers, and projections to a few numbers.
NARROW = (".mlp.gate.", "shared_expert_gate", "in_proj_a.", "in_proj_b.")
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def opened(
    folder: Path,
    tensors: dict[str, Array],
    quantization: dict[str, Any] | None,
    family: str = "qwen3",
) -> ModelFiles:
    config = tiny_case(family).config
    config = config if quantization is None else config | {"quantization_config": quantization}
    return open_model(write_safetensors(folder, tensors, config))


def one_module(folder: Path, form: str, shape: tuple[int, int]) -> tuple[ModelFiles, Array]:
    packer, quantization, _ = FORMS[form]
    tensors, values = packer(np.random.default_rng(3), shape)
    named = {STEM + end: tensor for end, tensor in tensors.items()}
    return opened(
        folder, named | {"model.norm.weight": np.ones(4, np.float32)}, quantization
    ), values


@EVERY_FORM
@pytest.mark.parametrize("num_rows", [24, 136])
def test_a_weight_is_its_formula_to_the_bit(tmp_path: Path, form: str, num_rows: int) -> None:
    files, values = one_module(tmp_path, form, (num_rows, 384))

    weight = files.source.get(f"{STEM}.weight")

    assert isinstance(weight, QuantTensor)
    assert weight.dtype.name == FORMS[form][2]
    np.testing.assert_array_equal(ops.dequantize(weight), values)


@EVERY_FORM
def test_headers_say_what_the_weight_is(tmp_path: Path, form: str) -> None:
    files, _ = one_module(tmp_path, form, (24, 384))

    info = files.source.info(f"{STEM}.weight")

    weight = files.source.get(info.name)
    assert isinstance(weight, QuantTensor)
    assert set(files.source.names()) == {"model.norm.weight", info.name}
    assert (info.shape, info.dtype, info.nbytes) == (weight.shape, weight.dtype, weight.nbytes)
    assert info.size == 24 * 384
    assert files.source.info("model.norm.weight").shape == (4,)


@pytest.mark.parametrize(
    ("form", "expected"),
    [("fp8_block", None), ("fp8_row", "fp8_g32"), ("pack_int8", "int8_g32")],
)
def test_rows_that_are_no_multiple_of_128_take_smaller_blocks(
    tmp_path: Path, form: str, expected: str | None
) -> None:
    files, values = one_module(tmp_path, form, (24, 288))

    weight = files.source.get(f"{STEM}.weight")

    assert isinstance(weight, QuantTensor)
    assert weight.dtype.name == (expected or "fp8_g32")
    np.testing.assert_array_equal(ops.dequantize(weight), values)


@EVERY_FORM
@pytest.mark.native
def test_native_products_decode_the_same_values(tmp_path: Path, form: str) -> None:
    files, values = one_module(tmp_path, form, (40, 384))
    weight = files.source.get(f"{STEM}.weight")
    backends.load("cpu")
    use_backend("cpu")

    decoded = ops.packed_linear(np.eye(384, dtype=np.float32), ops.prepack_weight(weight))

    use_backend("numpy")
    np.testing.assert_array_equal(decoded.T, values)


def packed_model(
    form: str, family: str = "qwen3", seed: int = 11
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return a tiny model with packed matrices in its layers, and the same in f32."""
    rng = np.random.default_rng(seed)
    packer = FORMS[form][0]
    packed: dict[str, Array] = {}
    plain: dict[str, Array] = {}
    for name, array in tiny_case(family).weights().items():
        if array.ndim == 2 and "layers." in name and not any(part in name for part in NARROW):
            parts, plain[name] = packer(rng, (array.shape[0], array.shape[1]))
            packed |= {name.removesuffix(".weight") + end: part for end, part in parts.items()}
        else:
            packed[name] = plain[name] = array
    return packed, plain


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "qwen3_5_moe_mtp"])
@EVERY_FORM
def test_a_model_gives_the_logits_of_its_values(tmp_path: Path, form: str, family: str) -> None:
    packed, plain = packed_model(form, family)
    files = opened(tmp_path / "packed", packed, FORMS[form][1], family)
    opened(tmp_path / "plain", plain, None, family)
    prompts = [(np.arange(5), np.arange(5))]

    check_model(files, model_config(files))
    kept = load_case(tmp_path / "packed", expand="never")
    widened = load_case(tmp_path / "packed", expand="always")
    want = all_logits(load_case(tmp_path / "plain").model, prompts)[0]

    assert kept.report.dtypes[FORMS[form][2]] == len(plain) - kept.report.dtypes["f32"]
    np.testing.assert_array_equal(all_logits(widened.model, prompts)[0], want)
    scale = np.abs(want).max()
    np.testing.assert_allclose(all_logits(kept.model, prompts)[0], want, atol=1e-4 * scale)
    assert list(verify_model(files)) == []


@pytest.mark.native
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
@EVERY_FORM
def test_a_model_on_native_kernels_is_near_the_reference(
    tmp_path: Path, form: str, family: str
) -> None:
    packed, _ = packed_model(form, family)
    opened(tmp_path, packed, FORMS[form][1], family)
    prompts = [(np.arange(5), np.arange(5))]
    want = all_logits(load_case(tmp_path, expand="never").model, prompts)[0]
    backends.load("cpu")
    use_backend("cpu")

    got = all_logits(load_case(tmp_path, expand="never").model, prompts)[0]

    use_backend("numpy")
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())


def fused_experts(num_rows: int) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(5)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    modules = [packers.fp8_block(rng, (num_rows, 256)) for _ in range(3)]
    tensors = {
        name: np.stack([tensors[".weight"] for tensors, _ in modules]),
        name + "_scale_inv": np.stack([tensors[".weight_scale_inv"] for tensors, _ in modules]),
    }
    return tensors, np.stack([values for _, values in modules])


def test_fused_experts_in_fp8_are_gate_and_up(tmp_path: Path) -> None:
    tensors, values = fused_experts(512)

    source = opened(tmp_path, tensors, {"quant_method": "fp8"}).source

    for projection, rows in (("gate", slice(0, 256)), ("up", slice(256, 512))):
        weight = source.get(f"model.layers.0.mlp.experts.{projection}_proj.weight")
        assert isinstance(weight, QuantTensor)
        np.testing.assert_array_equal(ops.dequantize(weight), values[:, rows])


def test_fused_experts_in_fp8_whose_halves_share_a_block_are_refused(tmp_path: Path) -> None:
    tensors, _ = fused_experts(192)
    source = opened(tmp_path, tensors, {"quant_method": "fp8"}).source

    with pytest.raises(UnsupportedError, match="a multiple of 128 rows for gate and up"):
        source.info("model.layers.0.mlp.experts.gate_proj.weight")


def test_model_optimizer_may_have_a_config_of_its_own(tmp_path: Path) -> None:
    tensors, values = packers.nvfp4_modelopt(np.random.default_rng(0), (16, 128))
    named = {STEM + end: tensor for end, tensor in tensors.items()}
    quantization = {"quantization": {"quant_algo": "NVFP4"}}
    files = {"hf_quant_config.json": quantization}
    write_safetensors(tmp_path, named, tiny_case("qwen3").config, files=files)

    weight = open_model(tmp_path).source.get(f"{STEM}.weight")

    assert isinstance(weight, QuantTensor)
    np.testing.assert_array_equal(ops.dequantize(weight), values)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "aqlm"}, "'aqlm' is not supported.*awq, compressed-tensors, fp8"),
        ({"quant_method": "gptq", "bits": 3}, "bits: expected 4 for gptq, got 3"),
        ({"quant_method": "awq", "version": "gemv"}, "version: expected 'gemm'"),
        ({"quant_method": "awq", "bits": 8}, "bits: expected '?4'? for awq"),
        (
            {"quant_method": "compressed-tensors", "format": "marlin-24"},
            "format: expected one of pack-quantized",
        ),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "two positive integers"),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    tmp_path: Path, quantization: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        opened(tmp_path, {"model.norm.weight": np.ones(4, np.float32)}, quantization)


def gptq_with(folder: Path, stem: str, g_idx: Array) -> ModelFiles:
    tensors, _ = packers.gptq(np.random.default_rng(0), (16, 256))
    tensors[".g_idx"] = g_idx.astype(np.int32)
    return opened(folder, {stem + k: v for k, v in tensors.items()}, {"quant_method": "gptq"})


@pytest.mark.parametrize(
    ("form", "part"), [("pack_int4", ".weight_g_idx"), ("pack_int8", ".weight_g_idx")]
)
def test_packed_columns_in_another_order_are_the_formula(
    tmp_path: Path, form: str, part: str
) -> None:
    """``actorder``: which group a column is of, says a list, for experts as for layers."""
    packer, quantization, dtype = FORMS[form]
    rng = np.random.default_rng(3)
    tensors, values = packer(rng, (24, 384))
    old = np.repeat(
        tensors[".weight_scale"].astype(np.float32), 384 // tensors[".weight_scale"].shape[1], 1
    )
    steps = values / old
    scale = rng.uniform(0.01, 0.05, (24, 3)).astype(np.float16)
    groups = rng.permutation(np.arange(384) // 128).astype(np.int32)
    tensors |= {".weight_scale": scale, part: groups}
    stem = "model.layers.0.mlp.experts.3.up_proj"
    source = opened(tmp_path, {stem + k: v for k, v in tensors.items()}, quantization).source

    weight = source.get(f"{stem}.weight")

    assert isinstance(weight, QuantTensor)
    assert weight.dtype.name == dtype
    want = scale.astype(np.float32)[:, groups] * np.rint(steps)
    np.testing.assert_array_equal(ops.dequantize(weight), want)


def test_groups_of_several_sizes_are_refused(tmp_path: Path) -> None:
    files = gptq_with(tmp_path, STEM, np.arange(256) // 250)

    with pytest.raises(UnsupportedError, match="groups of 128 columns, got others"):
        files.source.get(f"{STEM}.weight")


def test_matrices_over_one_input_may_have_other_orders(tmp_path: Path) -> None:
    files, _ = one_module(tmp_path, "gptq_in_order", (24, 384))
    weight = files.source.get(f"{STEM}.weight")
    plain = one_module(tmp_path / "plain", "gptq", (24, 384))[0].source.get(f"{STEM}.weight")

    with pytest.raises(ShapeError, match="columns in one order"):
        ops.prepack_weight(weight, plain)


def test_groups_that_fit_no_block_are_refused(tmp_path: Path) -> None:
    tensors, _ = packers.awq(np.random.default_rng(0), (16, 96), group=16)
    files = opened(tmp_path, {STEM + k: v for k, v in tensors.items()}, {"quant_method": "awq"})

    with pytest.raises(UnsupportedError, match="groups of 16 in rows of 96"):
        files.source.info(f"{STEM}.weight")


def test_int8_with_zero_points_is_refused(tmp_path: Path) -> None:
    tensors, _ = packers.pack_int8(np.random.default_rng(0), (16, 128))
    tensors[".weight_zero_point"] = np.zeros((4, 1), np.int32)
    named = {STEM + end: tensor for end, tensor in tensors.items()}
    files = opened(tmp_path, named, {"quant_method": "compressed-tensors"})

    with pytest.raises(UnsupportedError, match="got 8 bits with zero points"):
        files.source.info(f"{STEM}.weight")


def test_a_module_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    tensors, _ = packers.gptq(np.random.default_rng(0), (16, 128))
    del tensors[".scales"]
    named = {STEM + end: tensor for end, tensor in tensors.items()}

    with pytest.raises(
        CheckpointError, match=r"up_proj\.weight .*got \.g_idx, \.qweight, \.qzeros"
    ):
        opened(tmp_path, named, {"quant_method": "gptq"})


@pytest.mark.parametrize(
    ("form", "end"),
    [
        ("fp8_block", ".weight_scale_inv"),
        ("fp8_row", ".weight_scale"),
        ("nvfp4_modelopt", ".weight_scale"),
    ],
)
def test_scales_that_do_not_fit_are_named(tmp_path: Path, form: str, end: str) -> None:
    packer, quantization, _ = FORMS[form]
    tensors, _ = packer(np.random.default_rng(0), (160, 256))
    tensors[end] = tensors[end][:-1].copy()
    files = opened(tmp_path, {STEM + k: v for k, v in tensors.items()}, quantization)

    with pytest.raises(CheckpointError, match=f"{STEM}{end} .*expected scales") as caught:
        files.source.get(f"{STEM}.weight")

    assert caught.value.tensor == STEM + end


@pytest.mark.parametrize("given", ["fp8", ["gptq"], 4])
def test_settings_that_are_no_object_are_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigError, match="quantization_config: expected an object, got"):
        scheme_of({"quantization_config": given})
