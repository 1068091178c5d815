import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import write_case
from tests.cli.conftest import RunCommand
from tests.cli.tiny_files import PLAIN_TEMPLATE, write_folder, write_talker

CASE = MODEL_CASES_BY_NAME["llama"]


def _config(**changes: Any) -> dict[str, Any]:
    return CASE.config | changes


def test_inspect_folder_gives_its_facts(run_command: RunCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", files={"chat_template.jinja": PLAIN_TEMPLATE})

    result = run_command("inspect", str(folder), "--json")

    facts = json.loads(result.out)
    num_parameters = sum(weight.size for weight in CASE.weights().values())
    assert result.code == 0
    assert (facts["architecture"], facts["family"]) == ("LlamaForCausalLM", "llama")
    assert facts["format"] == "safetensors"
    assert facts["parameters"] == num_parameters
    assert facts["weight_bytes"] == 4 * num_parameters
    assert facts["quantization"] == [
        {
            "dtype": "f32",
            "bits_per_weight": 32.0,
            "tensors": len(CASE.weights()),
            "parameters": num_parameters,
            "bytes": 4 * num_parameters,
        }
    ]
    assert facts["rope"]["rope_type"] == "default"
    assert facts["context"] == 32768
    assert facts["tokenizer"] is None
    assert facts["chat_templates"] == {"default": PLAIN_TEMPLATE}
    assert "Hi there" in facts["chat_preview"]["text"]
    # 2 layers × K and V × 2 KV heads × 8 dims × 4 bytes × 1,024 tokens.
    assert facts["memory"]["kv_bytes_per_1k_tokens"] == {"f32": 262_144, "f16": 131_072}


def test_inspect_gguf_gives_its_quant_mix_and_tokenizer(
    run_command: RunCommand, smollm2_path: Path
) -> None:
    result = run_command("inspect", str(smollm2_path), "--json", "--tensors")

    facts = json.loads(result.out)
    assert facts["parameters"] == 134_515_008
    assert {row["dtype"]: row["tensors"] for row in facts["quantization"]} == {
        "q4_1": 210,
        "q8_0": 1,
        "f32": 61,
    }
    assert facts["tokenizer"]["kind"] == "GGUF gpt2, pre-tokenizer smollm"
    assert facts["tokenizer"]["vocab_size"] == 49_152
    assert facts["eos_token_ids"] == [2, 0]
    assert facts["tensors"][0] == {
        "name": "model.embed_tokens.weight",
        "dtype": "q8_0",
        "shape": [49152, 576],
        "bytes": 30_081_024,
        "file": smollm2_path.name,
    }


def test_inspect_shows_a_page_for_people(run_command: RunCommand, tmp_path: Path) -> None:
    template = "[bold]\x1b[31m{{ messages[0].content }}"
    folder = write_folder(tmp_path / "m", files={"chat_template.jinja": template})

    result = run_command("inspect", str(folder), "--tensors")

    assert result.code == 0
    assert "LlamaForCausalLM (safetensors)" in result.out
    assert "262.1 kB in f32" in result.out
    assert "model.layers.1.mlp.up_proj.weight" in result.out
    assert "[bold]\ufffd[31mHello" in result.out
    assert "\x1b" not in result.out


def test_inspect_template_shows_its_source(run_command: RunCommand, tmp_path: Path) -> None:
    template = "{% for message in messages %}\x1b[31m{{ message.content }}{% endfor %}" + "x" * 999
    folder = write_folder(tmp_path / "m", files={"chat_template.jinja": template})

    page = run_command("inspect", str(folder)).out
    with_source = run_command("inspect", str(folder), "--template").out

    assert template.replace("\x1b", "\ufffd") in with_source
    assert "{% for" not in page
    assert "HelloHi there" in page.replace("\ufffd[31m", "")


def test_inspect_template_that_fails_is_named(run_command: RunCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", files={"chat_template.jinja": "{{ 1 / 0 }}"})

    page = run_command("inspect", str(folder))
    facts = json.loads(run_command("inspect", str(folder), "--json").out)

    assert (page.code, page.err) == (0, "")
    assert facts["chat_preview"]["error"] in page.out
    assert "division" in page.out


def test_inspect_without_a_template_says_so(run_command: RunCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")

    assert "chat template\nnone" in run_command("inspect", str(folder)).out


def test_inspect_window_and_yarn_are_named(run_command: RunCommand, tmp_path: Path) -> None:
    window = run_command("inspect", str(write_folder(tmp_path / "w", "qwen3_window")))
    yarn = run_command("inspect", str(write_folder(tmp_path / "y", "llama_yarn")))

    assert "2 layers see 5" in window.out
    assert "yarn, theta 10000, 24 dims, factor 4" in yarn.out


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_inspect_tells_layers_with_a_state_and_the_draft_head(
    run_command: RunCommand, tmp_path: Path, kind: str
) -> None:
    model = write_case(MODEL_CASES_BY_NAME["qwen3_5_mtp"], tmp_path / "m", kind=kind)

    shown = run_command("inspect", str(model))
    facts = json.loads(run_command("inspect", str(model), "--json").out)

    state = 4 * (6 * 32 * 32 + 3 * 320)
    assert facts["linear_attention"]["bytes_per_state"] == state
    assert facts["memory"]["kv_bytes_per_1k_tokens"]["f32"] == 1024 * 2 * 4 * 2 * 32
    assert "1 layers, 2 key heads of 32 dims, 6 value heads of 32" in shown.out
    assert "draft head" in shown.out


def test_inspect_experts_are_counted_and_named(run_command: RunCommand, tmp_path: Path) -> None:
    case = MODEL_CASES_BY_NAME["qwen3_moe_some_dense"]
    path = write_case(case, tmp_path / "m", kind="gguf")

    facts = json.loads(run_command("inspect", str(path), "--json").out)
    page = run_command("inspect", str(path)).out

    weights = case.weights()
    total = sum(weight.size for weight in weights.values())
    of_experts = sum(w.size for name, w in weights.items() if ".experts." in name)
    active = total - of_experts * 4 // 6
    assert facts["parameters"] == total
    assert facts["moe"]["dense_layers"] == [0, 2, 3, 4]
    assert facts["moe"]["active_parameters"] == active
    assert f"{total:,}, {active:,} for a token" in page
    assert "6 in each of 1 layers, 2 for a token, intermediate 24" in page


@pytest.mark.parametrize("shards", [1, 3])
def test_inspect_verify_of_a_sound_model(
    shards: int, run_command: RunCommand, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", shards=shards)

    result = run_command("inspect", str(folder), "--verify")

    assert result.code == 0
    assert "sound" in result.out


def test_inspect_verify_finds_values_that_are_not_finite(
    run_command: RunCommand, tmp_path: Path
) -> None:
    weights = CASE.weights()
    weights["model.norm.weight"][3] = np.nan
    write_safetensors(tmp_path, weights, CASE.config)

    result = run_command("inspect", str(tmp_path), "--verify")

    assert result.code == 2
    assert "model.norm.weight: NaN or infinite values: 1" in result.out
    assert result.err.startswith("error: [verify]")


def test_inspect_verify_finds_a_shape_that_the_config_does_not_have(
    run_command: RunCommand, tmp_path: Path
) -> None:
    write_safetensors(tmp_path, CASE.weights(), _config(intermediate_size=64))

    result = run_command("inspect", str(tmp_path), "--verify", "--json")

    assert result.code == 2
    assert "expected shape" in json.loads(result.out)["findings"][0]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        pytest.param(
            _config(model_type="mamba", architectures=["MambaForCausalLM"]),
            "model_type: expected one of",
            id="family",
        ),
        pytest.param(_config(hidden_act="gelu"), "hidden_act", id="activation"),
        pytest.param(_config(hidden_size=None), "hidden_size", id="no_size"),
        pytest.param(
            _config(quantization_config={"quant_method": "aqlm"}), "aqlm", id="quantization"
        ),
    ],
)
def test_inspect_model_that_cannot_run_ends_with_code_2(
    config: dict[str, Any], text: str, run_command: RunCommand, tmp_path: Path
) -> None:
    write_safetensors(tmp_path, CASE.weights(), config)

    result = run_command("inspect", str(tmp_path))

    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_inspect_missing_shard_ends_with_code_2(run_command: RunCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()

    result = run_command("inspect", str(folder))

    assert (result.code, result.out) == (2, "")
    assert "model-00002-of-00003.safetensors" in result.err


def test_inspect_truncated_shard_ends_with_code_2(run_command: RunCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])

    result = run_command("inspect", str(folder))

    assert (result.code, result.out) == (2, "")
    assert "model.safetensors" in result.err


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/passwd", "a/../../b.safetensors"])
def test_inspect_shard_outside_the_folder_ends_with_code_2(
    shard: str, run_command: RunCommand, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    result = run_command("inspect", str(folder))

    assert (result.code, result.out) == (2, "")
    assert "error: " in result.err


def test_inspect_without_path_is_bad_usage(run_command: RunCommand) -> None:
    result = run_command("inspect")

    assert result.code == 2
    assert "expected PATH or --ops" in result.err


def test_inspect_ops_names_the_kernel_of_each_op(run_command: RunCommand) -> None:
    result = run_command("inspect", "--ops", "--json")

    rows = json.loads(result.out)["ops"]
    by_key = {(row["op"], row["dtype"]): row["kernels"] for row in rows}
    assert by_key["rms_norm", "bf16"]["numpy"] == "numpy"
    assert "none" not in {kernel for row in rows for kernel in row["kernels"].values()}


def test_inspect_ops_of_a_model_counts_the_reference(
    run_command: RunCommand,
    tmp_path: Path,
    qwen3_tokenizer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_talker(tmp_path / "m", qwen3_tokenizer_dir)
    monkeypatch.setenv("PYVT_DISABLE_KERNELS", "paged_attention")

    result = run_command("inspect", str(folder), "--ops", "--json")

    # Two layers over a prefill of 5 tokens and three steps of one; a backend that records runs the
    # step that it cannot record twice.
    assert json.loads(result.out)["reference_calls"]["paged_attention"] in (8, 10)
