"""``pyvt fit``: the plan of a model from its headers alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.engine import memory_plan
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import write_case
from pyvt.weights import safetensors
from tests.cli.conftest import RunCommand

CASE = MODEL_CASES_BY_NAME["llama"]


@pytest.fixture(params=["safetensors", "gguf"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_case(CASE, tmp_path / "model", kind=request.param)


def facts_of(run_command: RunCommand, *args: str) -> dict[str, Any]:
    result = run_command("fit", *args, "--json")
    assert result.code == 0, result.err
    facts: dict[str, Any] = json.loads(result.out)
    return facts


def test_fit_gives_the_parts_of_the_memory(run_command: RunCommand, model: Path) -> None:
    facts = facts_of(run_command, str(model), "--free-mib", "512", "--backend", "numpy")

    config = CASE.config
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per_token = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    assert facts["kv_bytes_per_token"] == per_token
    assert facts["weight_bytes"] == 4 * sum(w.size for w in CASE.weights().values())
    parts = [facts[f"{name}_bytes"] for name in ("weight", "kv", "activation", "left")]
    assert sum(parts) == facts["free_bytes"] == 512 << 20
    assert min(parts) > 0


@pytest.mark.parametrize(
    ("kv_dtype", "share"), [("f32", 4), ("bf16", 2), ("f16", 2), ("fp8_e4m3", 1)]
)
def test_fit_kv_dtype_decides_the_bytes_of_a_token(
    run_command: RunCommand, tmp_path: Path, kv_dtype: str, share: int
) -> None:
    model = write_case(CASE, tmp_path / "model")

    wide = facts_of(run_command, str(model), "--kv-cache-dtype", "f32")
    facts = facts_of(run_command, str(model), "--kv-cache-dtype", kv_dtype)

    assert facts["kv_bytes_per_token"] * 4 == wide["kv_bytes_per_token"] * share
    assert facts["kv_dtype"] == kv_dtype


@pytest.mark.parametrize(
    ("settings", "kv_dtype"),
    [
        (("--backend", "cpu"), "f16"),
        (("--backend", "cpu", "--act", "none"), "f32"),
        (("--backend", "cpu", "--dtype", "bf16"), "bf16"),
        (("--backend", "cpu", "--kv-cache-dtype", "f32"), "f32"),
        (("--backend", "numpy"), "f32"),
        (("--backend", "numpy", "--act", "q8"), "f32"),
    ],
)
def test_fit_auto_keeps_keys_and_values_in_f16_beside_int8_activations(
    run_command: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    kv_dtype: str,
) -> None:
    monkeypatch.setattr(memory_plan.backends, "available", lambda: ("cpu", "numpy"))
    model = write_case(CASE, tmp_path / "model")

    assert facts_of(run_command, str(model), *settings)["kv_dtype"] == kv_dtype


def test_fit_too_little_memory_says_by_how_much_and_three_remedies(
    run_command: RunCommand, model: Path
) -> None:
    result = run_command("fit", str(model), "--free-mib", "10")

    assert result.code == 2
    for text in ("10.0 MiB free", "MiB too little", "lower", "raise", "take a smaller"):
        assert text in result.err
    for option in ("--max-model-len", "--max-num-batched-tokens", "--memory-fraction"):
        assert option in result.err
    assert "_" not in result.err.replace(str(model), "")


def test_fit_text_has_a_line_for_each_part(run_command: RunCommand, model: Path) -> None:
    result = run_command("fit", str(model), "--free-mib", "512", "--block-size", "8")

    names = [line.split()[0] for line in result.out.splitlines()[:4]]
    assert names == ["weights", "KV", "activations", "left"]
    assert "blocks of 8 tokens" in result.out
    assert "requests of" in result.out.splitlines()[-1]


def test_fit_reads_no_tensor(
    run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_case(CASE, tmp_path / "model")

    def refuse(*_: Any) -> None:
        raise AssertionError("a tensor is read")

    monkeypatch.setattr(safetensors.SafetensorsSource, "get", refuse)

    assert run_command("fit", str(model)).code == 0


def test_fit_of_a_hybrid_gives_states_and_kv_their_parts(
    run_command: RunCommand, tmp_path: Path
) -> None:
    case = MODEL_CASES_BY_NAME["qwen3_5"]
    model = write_case(case, tmp_path / "model", kind="gguf")

    facts = facts_of(run_command, str(model), "--free-mib", "90", "--backend", "numpy")
    text = run_command("fit", str(model)).out

    state = 4 * 3 * (6 * 32 * 32 + 3 * 320)  # three of four layers
    assert facts["bytes_per_state"] == state
    assert facts["state_bytes"] == (facts["num_state_slots"] + 1) * state
    assert facts["kv_bytes_per_token"] == 2 * 4 * 2 * 32
    parts = [facts[f"{n}_bytes"] for n in ("weight", "kv", "state", "activation", "left")]
    assert sum(parts) == facts["free_bytes"]
    assert min(parts) > 0
    assert "states" in text


def test_fit_of_a_hybrid_takes_fewer_states_where_kv_needs_the_room(
    run_command: RunCommand, tmp_path: Path
) -> None:
    model = write_case(MODEL_CASES_BY_NAME["qwen3_5"], tmp_path / "model")
    args = (str(model), "--free-mib", "86", "--backend", "numpy", "--kv-cache-dtype", "f32")

    short, long = (facts_of(run_command, *args, "--max-model-len", n) for n in ("64", "8192"))

    assert long["num_full_requests"] == 1
    assert 2 <= long["num_state_slots"] < short["num_state_slots"]


def test_fit_counts_all_experts_and_their_activations(
    run_command: RunCommand, tmp_path: Path
) -> None:
    case = MODEL_CASES_BY_NAME["qwen3_moe"]
    model = write_case(case, tmp_path / "model", kind="gguf")
    dense = write_case(MODEL_CASES_BY_NAME["qwen3"], tmp_path / "dense", kind="gguf")

    step = ("--max-num-batched-tokens", "100")

    facts = facts_of(run_command, str(model), *step)

    assert facts["weight_bytes"] == 4 * sum(w.size for w in case.weights().values())
    of_dense = facts_of(run_command, str(dense), *step)["activation_bytes"]
    pairs = 100 * case.config["num_experts_per_tok"]
    assert facts["activation_bytes"] == of_dense + 2 * 4 * pairs * (32 + 24)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [("2", "1 request of 32 tokens fits"), ("4", "2 requests of 32 tokens fit")],
)
def test_fit_counts_requests_in_words(
    run_command: RunCommand, model: Path, blocks: str, words: str
) -> None:
    sizes = ("--max-model-len", "32", "--block-size", "16", "--num-blocks", blocks)

    result = run_command("fit", str(model), *sizes)

    assert f"{words} at once" in result.out, result.err
