"""Safetensors: values, views, names and the ways a model is cut into files."""

import json
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt.errors import CheckpointError
from pyvt.testing.checkpoints import safetensors_bytes, write_safetensors
from pyvt.weights.safetensors import SafetensorsSource, read_safetensors
from pyvt.weights.shards import open_safetensors_file, open_safetensors_folder

NUMPY_TYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float32)


def source_of(path: Path) -> SafetensorsSource:
    return SafetensorsSource([read_safetensors(path)])


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """Records of pyvt's own logger, which does not pass them on."""
    logger = logging.getLogger("pyvt")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_get_dtype_returns_the_stored_values(name: str, tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [3, 1, 0]]).astype(NUMPY_TYPES[name])
    write_safetensors(tmp_path, {"a": values}, {})

    source = source_of(tmp_path / "model.safetensors")

    assert source.info("a").dtype.name == name
    assert source.info("a").shape == (2, 3)
    assert source.get("a").dtype == values.dtype
    np.testing.assert_array_equal(source.get("a"), values)


def test_get_aligned_tensor_is_a_read_only_view(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {})

    tensor = source_of(tmp_path / "model.safetensors").get("a")

    assert isinstance(tensor, np.ndarray)
    assert not tensor.flags.owndata
    assert not tensor.flags.writeable
    assert tensor.base is not None


def test_get_twice_shares_memory(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {})
    source = source_of(tmp_path / "model.safetensors")

    assert np.shares_memory(source.get("a"), source.get("a"))


def test_get_misaligned_tensor_is_an_aligned_copy(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})
    odd = header + " " * (1 - len(header) % 2)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(safetensors_bytes(odd, A.tobytes()))

    tensor = source_of(path).get("a")

    assert isinstance(tensor, np.ndarray)
    assert tensor.flags.aligned
    assert not tensor.flags.writeable
    np.testing.assert_array_equal(tensor, A)


def test_get_scalar_and_empty_tensors_keep_their_shapes(tmp_path: Path) -> None:
    scalar, empty = np.array(2.5, np.float32), np.zeros((3, 0), np.float16)
    write_safetensors(tmp_path, {"scalar": scalar, "empty": empty}, {})

    source = source_of(tmp_path / "model.safetensors")

    assert source.get("scalar").shape == ()
    assert source.get("scalar") == 2.5
    assert source.get("empty").shape == (3, 0)
    assert source.info("empty").nbytes == 0


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.lm_head.weight", "lm_head.weight"),
        ("model.mtp.fc.weight", "mtp.fc.weight"),
        ("mtp.fc.weight", "mtp.fc.weight"),
        (
            "model.language_model.layers.3.mlp.experts.down_proj",
            "model.layers.3.mlp.experts.down_proj.weight",
        ),
        (
            "model.layers.3.mlp.experts.down_proj.weight",
            "model.layers.3.mlp.experts.down_proj.weight",
        ),
        (
            "model.layers.3.mlp.experts.7.down_proj.weight",
            "model.layers.3.mlp.experts.7.down_proj.weight",
        ),
    ],
)
def test_names_are_canonical(stored: str, canonical: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path, {stored: A}, {})

    source = source_of(tmp_path / "model.safetensors")

    assert list(source.names()) == [canonical]
    np.testing.assert_array_equal(source.get(canonical), A)


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_fused_gate_and_up_of_experts_are_two_views(suffix: str, tmp_path: Path) -> None:
    prefix = "model.layers.3.mlp.experts."
    both = np.arange(2 * 6 * 5, dtype=np.float32).reshape(2, 6, 5)
    write_safetensors(tmp_path, {f"{prefix}gate_up_proj{suffix}": both}, {})

    source = source_of(tmp_path / "model.safetensors")

    names = [f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"]
    assert list(source.names()) == names
    for name, want in zip(names, (both[:, :3], both[:, 3:]), strict=True):
        info, got = source.info(name), source.get(name)
        assert (info.shape, info.nbytes, info.size) == ((2, 3, 5), 120, 30)
        assert got.base is not None
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(2, 5, 4), (6, 4), (2, 0, 4)], ids=str)
def test_fused_experts_of_another_shape_are_refused(shape: Any, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write_safetensors(tmp_path, {name: np.zeros(shape, np.float32)}, {})

    with pytest.raises(
        CheckpointError, match=r"expected gate and up rows of each expert"
    ) as caught:
        source_of(tmp_path / "model.safetensors")

    assert caught.value.tensor == name


@pytest.mark.parametrize(
    "stored",
    [
        "model.visual.blocks.0.attn.qkv.weight",
        "visual.patch_embed.proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_names_of_no_text_model_are_dropped_and_listed(stored: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path, {stored: A, "a": A}, {})

    source = source_of(tmp_path / "model.safetensors")

    assert list(source.names()) == ["a"]
    assert source.dropped == [stored]


def test_get_unknown_name_offers_a_near_one(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"model.norm.weight": A}, {})
    source = source_of(tmp_path / "model.safetensors")

    with pytest.raises(CheckpointError, match=r"did you mean 'model\.norm\.weight'\?$") as caught:
        source.get("model.norm.weigth")

    assert caught.value.tensor == "model.norm.weigth"


def test_close_refuses_new_views_and_keeps_old_ones(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {})
    source = source_of(tmp_path / "model.safetensors")
    view = source.get("a")

    source.close()
    source.close()

    np.testing.assert_array_equal(view, A)
    with pytest.raises(CheckpointError, match="closed"):
        source.get("a")


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_folder_of_shards_holds_all_tensors(shards: int, tmp_path: Path) -> None:
    tensors = {name: A + i for i, name in enumerate("abcde")}
    write_safetensors(tmp_path, tensors, {}, shards=shards)

    source = open_safetensors_folder(tmp_path)

    assert set(source.names()) == set(tensors)
    assert len({source.info(name).path for name in source.names()}) == shards
    for name, values in tensors.items():
        np.testing.assert_array_equal(source.get(name), values)


def test_folder_with_stale_index_and_complete_set_warns(tmp_path: Path, warnings: Any) -> None:
    write_safetensors(tmp_path, {"a": A, "b": B}, {}, shards=2)
    index = {"weight_map": {"a": "model-00001-of-00009.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    source = open_safetensors_folder(tmp_path)

    assert set(source.names()) == {"a", "b"}
    assert "stale index ignored" in warnings.text


def test_folder_whose_index_leaves_out_a_tensor_warns_and_has_it(
    tmp_path: Path, warnings: Any
) -> None:
    write_safetensors(tmp_path, {"a": A, "c": A, "b": B}, {}, shards=2)
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    source = open_safetensors_folder(tmp_path)

    assert set(source.names()) == {"a", "b", "c"}
    assert "leaves out 1 tensors" in warnings.text


def test_folder_with_a_file_beside_the_index_warns_and_ignores_it(
    tmp_path: Path, warnings: Any
) -> None:
    write_safetensors(tmp_path, {"a": A, "b": B}, {}, shards=2)
    (tmp_path / "consolidated.safetensors").write_bytes(b"")

    source = open_safetensors_folder(tmp_path)

    assert set(source.names()) == {"a", "b"}
    assert "not in the index ignored: consolidated.safetensors" in warnings.text


def test_folder_with_single_file_and_index_reads_the_single_file(
    tmp_path: Path, warnings: Any
) -> None:
    write_safetensors(tmp_path, {"a": A, "b": B}, {}, shards=2)
    write_safetensors(tmp_path, {"c": A}, {})

    source = open_safetensors_folder(tmp_path)

    assert list(source.names()) == ["c"]
    assert "index ignored" in warnings.text


def test_folder_of_numbered_shards_needs_no_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A, "b": B}, {}, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()

    assert set(open_safetensors_folder(tmp_path).names()) == {"a", "b"}


@pytest.mark.parametrize("number", [1, 2])
def test_file_of_a_set_opens_the_whole_set(number: int, tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A, "b": B}, {}, shards=2)

    source = open_safetensors_file(tmp_path / f"model-0000{number}-of-00002.safetensors")

    assert set(source.names()) == {"a", "b"}


def test_folder_of_the_hub_cache_follows_links_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    blobs = tmp_path / "models--x--y" / "blobs"
    blobs.mkdir(parents=True)
    write_safetensors(snapshot, {"a": A}, {})
    (snapshot / "model.safetensors").rename(blobs / "f00d")
    (snapshot / "model.safetensors").symlink_to("../../blobs/f00d")

    source = open_safetensors_folder(snapshot)

    np.testing.assert_array_equal(source.get("a"), A)


def test_folder_link_out_of_the_hub_cache_is_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x--y" / "snapshots" / "0123"
    write_safetensors(snapshot, {"a": A}, {})
    (snapshot / "model.safetensors").rename(tmp_path / "models--x--y" / "f00d")
    (snapshot / "model.safetensors").symlink_to("../../f00d")

    with pytest.raises(CheckpointError, match="a file inside its folder"):
        open_safetensors_folder(snapshot)
