"""GGUF: metadata, tensors, the order of q and k rows, split files, a real model."""

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import Q4_0, Q8_0
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import (
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Typed,
    gguf_bytes,
    gguf_file,
    gguf_pair,
    permute_qk_rows,
    write_gguf,
)
from pyvt.weights.gguf import GGUFSource, open_gguf, read_gguf

A = np.arange(64, dtype=np.float32).reshape(2, 32)
QWEN3 = {"general.architecture": "qwen3"}
LLAMA = {
    "general.architecture": "llama",
    "llama.embedding_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}
HF_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def q8_0(values: Any) -> QuantTensor:
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    return QuantTensor(Q8_0, values.shape, blocks)


def weights(num_rows: int, num_columns: int = 32) -> Any:
    rng = np.random.default_rng(num_rows)
    return rng.standard_normal((num_rows, num_columns)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (U8, 255),
        (I8, -128),
        (U16, 65535),
        (I16, -32768),
        (U32, 2**32 - 1),
        (I32, -(2**31)),
        (F32, 0.5),
        (BOOL, True),
        (BOOL, False),
        (STRING, "aß🙂"),
        (STRING, ""),
        (U64, 2**64 - 1),
        (I64, -(2**63)),
        (F64, 1e300),
    ],
)
def test_read_metadata_value_and_array_of_each_type(kind: int, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [gguf_pair("one", Typed(kind, value)), gguf_pair("many", Typed(kind, [value] * 3))]
    path.write_bytes(gguf_file(pairs))

    metadata = read_gguf(path).metadata

    assert metadata == {"one": value, "many": [value] * 3}
    assert type(metadata["one"]) is type(value)
    assert type(metadata["many"][0]) is type(value)


def test_read_file_of_another_writer_returns_its_content(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    writer.add_uint32("qwen3.block_count", 7)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ß", "🙂"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    packed = q8_0(A)
    writer.add_tensor("f32", A)
    writer.add_tensor("f16", A.astype(np.float16))
    writer.add_tensor("q8_0", packed.blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    source = open_gguf(tmp_path / "m.gguf")

    assert source.metadata["qwen3.block_count"] == 7
    assert source.metadata["tokenizer.ggml.tokens"] == ["a", "ß", "🙂"]
    assert source.metadata["tokenizer.ggml.scores"] == [0.5, -1.0]
    np.testing.assert_array_equal(source.get("f32"), A)
    np.testing.assert_array_equal(source.get("f16"), A.astype(np.float16))
    quantised = source.get("q8_0")
    assert isinstance(quantised, QuantTensor)
    assert quantised.shape == (2, 32)
    np.testing.assert_array_equal(quantised.blocks, packed.blocks)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_get_plain_tensor_is_a_read_only_view(dtype: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", QWEN3, {"a": A.astype(dtype)})

    tensor = open_gguf(path).get("a")

    assert isinstance(tensor, np.ndarray)
    assert not tensor.flags.owndata
    assert not tensor.flags.writeable
    np.testing.assert_array_equal(tensor, A.astype(dtype))


def test_version_2_reads_as_version_3(tmp_path: Path) -> None:
    content = bytearray(gguf_bytes(QWEN3, {"a": A}))
    content[4] = 2
    (tmp_path / "m.gguf").write_bytes(content)

    file = read_gguf(tmp_path / "m.gguf")

    assert file.version == 2
    assert file.tensors["a"].shape == A.shape


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_of_the_file_is_used(alignment: int, tmp_path: Path) -> None:
    tensors = {"a": A[0, :3], "b": A}
    path = write_gguf(tmp_path / "m.gguf", QWEN3, tensors, alignment=alignment)

    source = open_gguf(path)

    assert read_gguf(path).tensors["b"].offset % alignment == 0
    np.testing.assert_array_equal(source.get("a"), A[0, :3])
    np.testing.assert_array_equal(source.get("b"), A)


def test_scalar_tensor_has_no_dims(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", QWEN3, {"a": np.array(2.5, np.float32)})

    assert open_gguf(path).get("a") == 2.5
    assert open_gguf(path).info("a").shape == ()


@pytest.mark.parametrize(("name", "heads"), [("q", 4), ("k", 2)])
def test_llama_rows_come_back_in_the_order_of_hugging_face(
    name: str, heads: int, tmp_path: Path
) -> None:
    weight, bias = weights(heads * 8), weights(heads * 8)[:, 0]
    packed = q8_0(permute_qk_rows(weight, heads))
    tensors = {
        f"blk.0.attn_{name}.weight": permute_qk_rows(weight, heads),
        f"blk.0.attn_{name}.bias": permute_qk_rows(bias, heads),
        f"blk.1.attn_{name}.weight": packed,
    }
    source = open_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, tensors))

    plain = source.get(f"model.layers.0.self_attn.{name}_proj.weight")
    quantised = source.get(f"model.layers.1.self_attn.{name}_proj.weight")

    np.testing.assert_array_equal(plain, weight)
    np.testing.assert_array_equal(source.get(f"model.layers.0.self_attn.{name}_proj.bias"), bias)
    assert isinstance(quantised, QuantTensor)
    np.testing.assert_array_equal(quantised.blocks, q8_0(weight).blocks)
    assert not quantised.blocks.flags.writeable


def test_llama_row_0_and_1_are_a_pair_of_the_first_head(tmp_path: Path) -> None:
    stored = np.arange(16, dtype=np.float32).reshape(16, 1)
    metadata = LLAMA | {"llama.attention.head_count": 2}
    path = write_gguf(tmp_path / "m.gguf", metadata, {"blk.0.attn_q.weight": stored})

    rows = open_gguf(path).get("model.layers.0.self_attn.q_proj.weight")

    assert np.ravel(rows).tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


def test_llama_heads_may_differ_by_layer(tmp_path: Path) -> None:
    weight = weights(16)
    metadata = LLAMA | {"llama.attention.head_count_kv": [1, 2]}
    tensors = {"blk.1.attn_k.weight": permute_qk_rows(weight, 2)}

    source = open_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors))

    np.testing.assert_array_equal(source.get("model.layers.1.self_attn.k_proj.weight"), weight)


def test_qwen3_rows_stay_as_they_are(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", QWEN3, {"blk.0.attn_q.weight": A})

    np.testing.assert_array_equal(open_gguf(path).get("model.layers.0.self_attn.q_proj.weight"), A)


def test_fused_qkv_is_three_views(tmp_path: Path) -> None:
    q, k, v = weights(32), weights(16), weights(12)
    metadata = QWEN3 | {
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 8,
        "qwen3.attention.value_length": 6,
    }
    fused = np.concatenate([q, k, v])
    tensors = {"blk.0.attn_qkv.weight": fused, "blk.1.attn_qkv.weight": q8_0(fused)}

    source = open_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors))

    for projection, values in {"q": q, "k": k, "v": v}.items():
        name = f"model.layers.0.self_attn.{projection}_proj.weight"
        packed = source.get(f"model.layers.1.self_attn.{projection}_proj.weight")
        np.testing.assert_array_equal(source.get(name), values)
        assert source.info(name).nbytes == values.nbytes
        assert source.info(name).shape == values.shape
        assert isinstance(packed, QuantTensor)
        np.testing.assert_array_equal(packed.blocks, q8_0(values).blocks)


def test_fused_qkv_of_llama_is_unpermuted(tmp_path: Path) -> None:
    q, k, v = weights(32), weights(16), weights(16)
    fused = np.concatenate([permute_qk_rows(q, 4), permute_qk_rows(k, 2), v])
    path = write_gguf(tmp_path / "m.gguf", LLAMA, {"blk.0.attn_qkv.weight": fused})

    source = open_gguf(path)

    for projection, values in {"q": q, "k": k, "v": v}.items():
        name = f"model.layers.0.self_attn.{projection}_proj.weight"
        np.testing.assert_array_equal(source.get(name), values)


def test_fused_and_single_q_of_one_layer_are_refused(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_qkv.weight": weights(64), "blk.0.attn_q.weight": weights(32)}
    path = write_gguf(tmp_path / "m.gguf", LLAMA, tensors)

    with pytest.raises(CheckpointError, match=r"expected it once, got it as 'blk\.0\.attn_qkv"):
        open_gguf(path)


def test_fused_gate_and_up_of_experts_are_two_views(tmp_path: Path) -> None:
    both = q8_0(np.random.default_rng(0).standard_normal((3, 8, 64), np.float32))
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "qwen3moe"},
        {"blk.7.ffn_gate_up_exps.weight": both},
    )

    source = open_gguf(path)

    prefix = "model.layers.7.mlp.experts."
    names = [f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"]
    assert list(source.names()) == names
    for name, rows in zip(names, (slice(0, 4), slice(4, 8)), strict=True):
        got, info = source.get(name), source.info(name)
        assert isinstance(got, QuantTensor)
        assert got.shape == info.shape == (3, 4, 64)
        assert info.nbytes == 3 * 4 * 68
        np.testing.assert_array_equal(got.blocks, both.blocks[:, rows])


def test_fused_experts_of_an_odd_number_of_rows_are_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "qwen3moe"},
        {"blk.0.ffn_gate_up_exps.weight": np.zeros((3, 5, 8), np.float32)},
    )

    with pytest.raises(CheckpointError, match=r"gate and up rows of each expert.*\(3, 5, 8\)"):
        open_gguf(path)


def test_unknown_tensors_keep_the_names_of_the_file(tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": A[0], "blk.0.attn_sinks.weight": A, "x.self_attn.y": A}

    source = open_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, tensors))

    assert list(source.names()) == list(tensors)


def test_get_unknown_name_names_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", QWEN3, {"output_norm.weight": A[0]})

    with pytest.raises(CheckpointError, match=r"m\.gguf.*did you mean 'model\.norm\.weight'"):
        open_gguf(path).get("model.norms.weight")


def test_close_refuses_new_views_and_keeps_old_ones(tmp_path: Path) -> None:
    source = open_gguf(write_gguf(tmp_path / "m.gguf", QWEN3, {"a": q8_0(A)}))
    view = source.get("a")

    source.close()

    assert isinstance(view, QuantTensor)
    np.testing.assert_array_equal(view.blocks, q8_0(A).blocks)
    with pytest.raises(CheckpointError, match="closed"):
        source.get("a")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_split_model_opens_from_any_part(number: int, tmp_path: Path) -> None:
    tensors = {"output_norm.weight": A[0], "a": A, "b": q8_0(A), "c": A + 1, "d": A + 2}
    first = write_gguf(tmp_path / "m.gguf", QWEN3 | {"k": 1}, tensors, splits=3)

    source = open_gguf(first.with_name(f"m-0000{number}-of-00003.gguf"))

    assert list(source.names()) == ["model.norm.weight", "a", "b", "c", "d"]
    assert source.metadata["k"] == 1
    assert source.info("c").path.name == "m-00002-of-00003.gguf"
    np.testing.assert_array_equal(source.get("d"), A + 2)


def test_split_model_may_have_a_first_part_without_tensors(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "m.gguf", QWEN3, {"a": A, "b": A}, splits=2)
    whole = write_gguf(tmp_path / "n.gguf", QWEN3, {}, splits=2)
    content = whole.read_bytes().replace(
        gguf_pair("split.tensors.count", Typed(I32, 0)),
        gguf_pair("split.tensors.count", Typed(I32, 1)),
    )
    first.write_bytes(content)

    assert list(open_gguf(first).names()) == ["b"]


def test_vocabulary_of_qwen3_is_read_whole(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    model = json.loads((qwen3_tokenizer_dir / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(merge) for merge in model["merges"]]
    metadata = QWEN3 | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": merges,
    }

    source = open_gguf(write_gguf(tmp_path / "m.gguf", metadata, {}))

    assert len(tokens) > 151_000
    assert source.metadata["tokenizer.ggml.tokens"] == tokens
    assert source.metadata["tokenizer.ggml.token_type"] == [1] * len(tokens)
    assert source.metadata["tokenizer.ggml.merges"] == merges


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GGUFSource:
    return open_gguf(smollm2_path)


def test_smollm2_has_the_names_of_a_30_layer_llama(smollm2: GGUFSource) -> None:
    layers = [f"model.layers.{i}.{part}.weight" for i in range(30) for part in HF_LAYER]

    assert set(smollm2.names()) == {"model.embed_tokens.weight", "model.norm.weight", *layers}


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("model.embed_tokens.weight", "q8_0", (49152, 576)),
        ("model.norm.weight", "f32", (576,)),
        ("model.layers.0.self_attn.q_proj.weight", "q4_1", (576, 576)),
        ("model.layers.29.self_attn.k_proj.weight", "q4_1", (192, 576)),
        ("model.layers.29.mlp.down_proj.weight", "q4_1", (576, 1536)),
    ],
)
def test_smollm2_tensors_have_their_types_and_shapes(
    smollm2: GGUFSource, name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    info = smollm2.info(name)

    assert (info.dtype.name, info.shape) == (dtype, shape)
    assert smollm2.get(name).shape == shape


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("model.layers.7.mlp.up_proj.weight", "7fde0d4ee0ee4285387c414ac07f322c"),
        ("model.norm.weight", "3b87f8e27335e67fc08f159cabfd2d18"),
        ("model.embed_tokens.weight", "0d728edd2a012d1663a6069567240d12"),
    ],
)
def test_smollm2_bytes_have_the_sha256_that_gguf_py_reads(
    smollm2: GGUFSource, name: str, digest: str
) -> None:
    tensor = smollm2.get(name)
    content = tensor.blocks if isinstance(tensor, QuantTensor) else tensor

    assert hashlib.sha256(content.tobytes()).hexdigest()[:32] == digest


def test_smollm2_vocabulary_starts_with_its_special_tokens(smollm2: GGUFSource) -> None:
    tokens = smollm2.metadata["tokenizer.ggml.tokens"]

    assert tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(tokens) == smollm2.metadata["llama.vocab_size"] == 49152


def test_info_size_counts_elements_of_blocks(tmp_path: Path) -> None:
    packed = QuantTensor(Q4_0, (3, 64), np.zeros((3, 36), np.uint8))
    source = open_gguf(write_gguf(tmp_path / "m.gguf", QWEN3, {"a": packed}))

    assert source.info("a").nbytes == 108
    assert source.info("a").size == 192
