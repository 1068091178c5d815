"""A model from safetensors or GGUF to a GGUF file of another type."""

import errno
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.convert import FILE_TYPES, gguf_writer, quantize_model
from pyvt.errors import CheckpointError, ConfigError, OutputError, UnsupportedError
from pyvt.models.registry import check_model, model_config
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, fused_experts, stacked_experts
from pyvt.testing.model_runs import all_logits, load_case
from pyvt.weights.gguf import open_gguf
from pyvt.weights.resolve import open_model
from pyvt.weights.source import WeightSource
from tests.convert.tiny_source import TEMPLATE, bpe_json, tiny_case, write_source

Array = np.ndarray[Any, Any]


def values(source: WeightSource, name: str) -> Array:
    tensor = source.get(name)
    return ops.dequantize(tensor) if isinstance(tensor, QuantTensor) else tensor.astype(np.float32)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_a_file_of_floats_is_the_model(tmp_path: Path, family: str) -> None:
    source = write_source(tmp_path / "model", family)
    case = tiny_case(family)

    quantize_model(source, tmp_path / "out.gguf", "f32")

    files = open_model(tmp_path / "out.gguf")
    check_model(files, model_config(files))
    for name, array in stacked_experts(case.weights()).items():
        np.testing.assert_array_equal(values(files.source, name), array, err_msg=name)
    prompts = list(case.prompts().values())[:1]
    got = all_logits(load_case(tmp_path / "out.gguf").model, prompts)
    np.testing.assert_array_equal(got, all_logits(load_case(source).model, prompts))


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_every_type_comes_back_near_the_model(tmp_path: Path, file_type: str) -> None:
    source = write_source(tmp_path / "model", "llama", tie_word_embeddings=True)
    weights = tiny_case("llama", tie_word_embeddings=True).weights()

    report = quantize_model(source, tmp_path / "out.gguf", file_type)

    files = open_model(tmp_path / "out.gguf")
    for name, array in weights.items():
        error = values(files.source, name) - array
        assert np.mean(error**2) <= 8e-3 * np.mean(array**2), name
    assert report.num_tensors == len(weights)
    assert report.nbytes == sum(files.source.info(name).nbytes for name in weights)
    assert files.gguf_metadata is not None
    assert files.gguf_metadata["general.file_type"] == FILE_TYPES[file_type].gguf_id


def test_experts_come_out_alike_however_they_lie(tmp_path: Path) -> None:
    source = write_source(tmp_path / "single", "qwen3_moe")
    case = tiny_case("qwen3_moe")
    quantize_model(source, tmp_path / "single.gguf", "q4_0")
    single = open_gguf(tmp_path / "single.gguf")
    for store in (stacked_experts, fused_experts):
        name = store.__name__
        write_source(tmp_path / name, "qwen3_moe")
        write_safetensors(tmp_path / name, store(case.weights()), case.config)

        quantize_model(tmp_path / name, tmp_path / f"{name}.gguf", "q4_0")

        stacked = open_gguf(tmp_path / f"{name}.gguf")
        assert set(single.names()) == set(stacked.names())
        for tensor in single.names():
            np.testing.assert_array_equal(values(single, tensor), values(stacked, tensor), tensor)
    router = single.info("model.layers.0.mlp.gate.weight")
    experts = single.info("model.layers.0.mlp.experts.up_proj.weight")
    assert (router.dtype.name, experts.dtype.name) == ("f32", "q4_0")
    assert experts.shape == (case.config["num_experts"], 256, 256)


def test_experts_whose_weights_do_not_add_up_to_1_are_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model", "qwen3_moe", norm_topk_prob=False)

    with pytest.raises(UnsupportedError, match="norm_topk_prob: expected true, got false"):
        quantize_model(source, tmp_path / "out.gguf", "q8_0")


def test_the_file_has_tokenizer_template_and_name(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")

    quantize_model(source, tmp_path / "out.gguf", "q8_0")

    files = open_model(tmp_path / "out.gguf")
    metadata = files.gguf_metadata or {}
    assert files.chat_templates == {"default": TEMPLATE}
    assert metadata["general.name"] == "model"
    assert metadata["tokenizer.ggml.pre"] == "qwen2"
    assert len(metadata["tokenizer.ggml.tokens"]) == 272
    assert metadata["general.quantization_version"] == 2


def test_a_source_in_bf16_is_read_in_bf16(tmp_path: Path) -> None:
    case = tiny_case("qwen3")
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in case.weights().items()}
    write_source(tmp_path / "model")
    write_safetensors(tmp_path / "model", halves, case.config)

    quantize_model(tmp_path / "model", tmp_path / "out.gguf", "bf16")

    files = open_model(tmp_path / "out.gguf")
    for name, array in halves.items():
        np.testing.assert_array_equal(values(files.source, name), array.astype(np.float32))


@pytest.mark.parametrize("splits", [1, 2])
def test_a_gguf_file_keeps_its_metadata_and_its_order(tmp_path: Path, splits: int) -> None:
    source = write_source(tmp_path / "model", "llama")
    quantize_model(source, tmp_path / "f32.gguf", "f32")
    whole = open_gguf(tmp_path / "f32.gguf").files[0]
    tensors = {
        row.name: whole.mapped.tensor(row.name, row.dtype, row.shape, row.offset)
        for row in whole.tensors.values()
    }
    first = write_gguf(tmp_path / "parts.gguf", whole.metadata, tensors, splits=splits)

    quantize_model(source, tmp_path / "direct.gguf", "q4_k_m")
    quantize_model(tmp_path / "f32.gguf", tmp_path / "again.gguf", "q4_k_m")
    quantize_model(first, tmp_path / "joined.gguf", "q4_k_m")

    direct = (tmp_path / "direct.gguf").read_bytes()
    assert (tmp_path / "again.gguf").read_bytes() == direct
    joined = open_gguf(tmp_path / "joined.gguf")
    assert joined.metadata.keys() == open_gguf(tmp_path / "direct.gguf").metadata.keys()
    for name in joined.names():
        expected = open_gguf(tmp_path / "direct.gguf").get(name)
        got = joined.get(name)
        if isinstance(got, QuantTensor):
            assert isinstance(expected, QuantTensor)
            got, expected = got.blocks, expected.blocks
        np.testing.assert_array_equal(got, expected)


def test_llama3_scaling_becomes_divisors(tmp_path: Path) -> None:
    rope = MODEL_CASES_BY_NAME["llama_llama3"].config["rope_parameters"]
    source = write_source(tmp_path / "model", "llama", rope_parameters=rope)

    quantize_model(source, tmp_path / "out.gguf", "f32")

    config = model_config(open_model(tmp_path / "out.gguf"))
    assert config.rope.freq_divisors is not None
    assert len(config.rope.freq_divisors) == 32
    assert max(config.rope.freq_divisors) == pytest.approx(rope["factor"])


def test_yarn_and_biases_are_kept(tmp_path: Path) -> None:
    rope = MODEL_CASES_BY_NAME["llama_yarn"].config["rope_parameters"]
    changes = {"rope_parameters": rope, "attention_bias": True, "mlp_bias": True}
    source = write_source(tmp_path / "model", "llama", **changes)

    quantize_model(source, tmp_path / "out.gguf", "f32")

    config, expected = (model_config(open_model(p)) for p in (tmp_path / "out.gguf", source))
    assert config.rope == expected.rope
    assert config.mlp_bias
    assert config.attention_bias


@pytest.mark.parametrize(
    ("case", "message"),
    [("qwen3_window", "sliding_window: expected full attention"), ("qwen3_yarn", "truncate")],
)
def test_what_gguf_cannot_say_is_refused(tmp_path: Path, case: str, message: str) -> None:
    config = {k: v for k, v in MODEL_CASES_BY_NAME[case].config.items() if k != "vocab_size"}
    source = write_source(tmp_path / "model", "qwen3", **config)

    with pytest.raises(UnsupportedError, match=message):
        quantize_model(source, tmp_path / "out.gguf", "q8_0")


def test_a_file_of_blocks_is_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    quantize_model(source, tmp_path / "q8.gguf", "q8_0")

    with pytest.raises(UnsupportedError, match=r"got q8_0; start from a file before"):
        quantize_model(tmp_path / "q8.gguf", tmp_path / "out.gguf", "q4_0")

    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.bin", "ends in .gguf"),
        ("nowhere/out.gguf", "make it first"),
        ("there.gguf", "--force replaces it"),
        ("folder.gguf", "give the name of the file"),
    ],
)
def test_a_bad_place_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there.gguf").write_bytes(b"old")
    (tmp_path / "folder.gguf").mkdir()

    with pytest.raises(ConfigError, match=message):
        quantize_model(tmp_path / "model", tmp_path / name, "q8_0")

    assert (tmp_path / "there.gguf").read_bytes() == b"old"


def test_the_model_itself_is_not_replaced(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    quantize_model(source, tmp_path / "f32.gguf", "f32")

    with pytest.raises(ConfigError, match="another file than the model"):
        quantize_model(tmp_path / "f32.gguf", tmp_path / "f32.gguf", "q8_0", is_forced=True)


def test_an_old_file_is_replaced_when_forced(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    (tmp_path / "out.gguf").write_bytes(b"old")

    quantize_model(source, tmp_path / "out.gguf", "q8_0", is_forced=True)

    assert open_gguf(tmp_path / "out.gguf").architecture == "qwen3"


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_a_run_that_is_stopped_leaves_nothing(tmp_path: Path, fault: Any) -> None:
    source = write_source(tmp_path / "model")
    (tmp_path / "out.gguf").write_bytes(b"old")
    before = sorted(tmp_path.iterdir())

    def stop(done: int, total: int) -> None:
        raise fault

    expected = KeyboardInterrupt if fault is KeyboardInterrupt else OutputError
    with pytest.raises(expected):
        quantize_model(source, tmp_path / "out.gguf", "q8_0", is_forced=True, progress=stop)

    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "out.gguf").read_bytes() == b"old"


def test_a_full_disk_is_told_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "model")
    usage = gguf_writer.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(gguf_writer.shutil, "disk_usage", lambda path: usage)

    with pytest.raises(OutputError, match=r"MiB free in .*; free some space"):
        quantize_model(source, tmp_path / "out.gguf", "q8_0")

    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_value_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    case = tiny_case("qwen3")
    weights = case.weights()
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    write_source(tmp_path / "model")
    write_safetensors(tmp_path / "model", weights, case.config)

    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight: expected finite"):
        quantize_model(tmp_path / "model", tmp_path / "out.gguf", "q8_0")

    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    case = tiny_case("qwen3")
    write_safetensors(tmp_path / "model", case.weights(), case.config)

    with pytest.raises(CheckpointError, match=r"expected tokenizer\.json beside the weights"):
        quantize_model(tmp_path / "model", tmp_path / "out.gguf", "q8_0")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model", tokenizer=bpe_json(), vocab_size=200)

    with pytest.raises(CheckpointError, match="at most vocab_size=200 tokens"):
        quantize_model(source, tmp_path / "out.gguf", "q8_0")


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    seen: list[tuple[int, int]] = []

    report = quantize_model(
        source, tmp_path / "out.gguf", "q6_k", num_threads=2, progress=lambda *a: seen.append(a)
    )

    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (report.nbytes, report.nbytes)
