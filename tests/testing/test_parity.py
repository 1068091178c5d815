"""The parity runner: what it counts, what fails it, and greedy text of the real file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pyvt.errors import CheckpointError, ConfigError
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing import parity
from pyvt.testing.parity import (
    forced_verdicts,
    free_differences,
    read_prompts,
    run_parity,
    text_engine,
    unequal_prompt_ids,
)
from pyvt.testing.text_parity import POLICIES, TextGolden, read_text_goldens
from tests.engine.tiny_model import CONFIG, write_tiny_model

MODEL = "smollm2-135m-instruct.q4_1"
# The two longest prompts take as long as the other 22; they run under `make test-all`.
LONG = ("table", "long")


@pytest.fixture
def goldens(goldens_root: Path) -> list[TextGolden]:
    return list(read_text_goldens(goldens_root, MODEL))


def _cut(goldens: list[TextGolden], *, is_long: bool) -> list[TextGolden]:
    return [golden for golden in goldens if (golden.prompt_id in LONG) == is_long]


@pytest.mark.parametrize(
    "is_long", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_text_of_the_real_file_meets_both_oracles(
    smollm2_path: Path, goldens: list[TextGolden], is_long: bool
) -> None:
    verdicts = forced_verdicts(smollm2_path, _cut(goldens, is_long=is_long))

    assert verdicts.keys() == POLICIES.keys()
    for oracle, verdict in verdicts.items():
        assert verdict.num_positions >= len(LONG) * 60
        assert verdict.problems(POLICIES[oracle]) == []


@pytest.mark.parametrize(
    "num_prompts", [6, pytest.param(24, marks=pytest.mark.slow)], ids=["six", "all"]
)
def test_free_running_text_equals_transformers(
    smollm2_path: Path, goldens: list[TextGolden], num_prompts: int
) -> None:
    exact = [golden for golden in goldens if golden.oracle == "transformers"]
    llm = text_engine(smollm2_path, "numpy")

    assert len(exact) == 24
    assert len(free_differences(llm, exact[:num_prompts])) <= 1


def test_prompt_ids_equal_llama_cpp(
    smollm2_path: Path, goldens: list[TextGolden], goldens_root: Path
) -> None:
    cut = [golden for golden in goldens if golden.oracle == "llama.cpp"]
    llm = text_engine(smollm2_path, "numpy")

    assert len(cut) == 24
    assert unequal_prompt_ids(llm, cut, read_prompts(goldens_root)) == []


def test_run_without_goldens_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no manifest below"):
        run_parity(tmp_path, only="ops", print=print)


def test_run_of_an_unknown_section_names_the_known(goldens_root: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'ops'"):
        run_parity(goldens_root, only="op", print=print)


def test_run_with_a_bent_golden_fails(goldens_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ops" / "relu"
    shutil.copytree(goldens_root / "ops" / "relu", folder)
    path = next(folder.glob("*.npz"))
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays |= {name: array + 1 for name, array in arrays.items() if ".out." in name}
    np.savez(path, allow_pickle=False, **arrays)
    lines: list[str] = []

    code = run_parity(tmp_path, only="ops", print=lines.append)

    assert code == 1
    assert any(line.startswith("  FAIL relu f32") for line in lines)


def test_run_with_too_few_goldens_fails(goldens_root: Path, tmp_path: Path) -> None:
    shutil.copytree(goldens_root / "ops" / "relu", tmp_path / "ops" / "relu")
    lines: list[str] = []

    assert run_parity(tmp_path, only="ops", print=lines.append) == 1
    assert lines[-1] == "parity: FAIL ops"


def test_record_keeps_the_sections_that_did_not_run(goldens_root: Path, tmp_path: Path) -> None:
    record = tmp_path / "numpy.json"
    text = {"label": "PASS", "figure": "as before", "op_rows": []}
    record.write_text(json.dumps({"backend": "numpy", "sections": {"text": text}}))

    run_parity(goldens_root, only="lockstep", record=record, print=lambda line: None)

    sections = json.loads(record.read_text())["sections"]
    assert list(sections) == ["lockstep", "text"]
    assert sections["text"] == text


def test_real_rows_without_a_folder_did_not_run(goldens_root: Path) -> None:
    lines: list[str] = []

    code = run_parity(goldens_root, only="real", print=lines.append)

    assert code == 0
    assert ["NOT_RUN_ARTIFACT" in line for line in lines] == [True, True, False]


def test_dump_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="valid names"):
        parity.dump_parity("python", ("nothing",), print=print)


def test_dump_with_a_python_that_is_not_there_is_refused(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo)

    with pytest.raises(ConfigError, match="'/nowhere/python'"):
        parity.dump_parity("/nowhere/python", ("ops", "add"), print=print)


def test_dump_runs_the_dumper_in_the_caller_s_environment(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo)
    monkeypatch.setenv("HF_HOME", "/models")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@ $HF_HOME $PYTHONPATH" > {tmp_path / "call"}\n')
    python.chmod(0o755)

    code = parity.dump_parity(str(python), ("trace", "llama", "out.npz"), print=print)

    assert code == 0
    assert (tmp_path / "call").read_text().split() == [
        str(Path("parity") / "dump_trace.py"),
        "llama",
        "out.npz",
        "/models",
        ".",
    ]


def test_real_row_is_judged_by_a_golden_of_the_given_folder(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "real" / "Qwen3-0.6B")
    (model / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4096}))
    params = SamplingParams(temperature=0, max_tokens=32)
    token_ids = LLM(str(model)).generate([[1, 2, 3]], params)[0].outputs[0].token_ids
    _write_text_golden(tmp_path / "right", token_ids)
    _write_text_golden(tmp_path / "wrong", (*token_ids[:-1], token_ids[-1] ^ 1))
    lines: list[str] = []

    codes = [
        run_parity(tmp_path / kind, real=tmp_path / "real", only="real", print=lines.append)
        for kind in ("right", "wrong")
    ]

    assert codes == [0, 1]
    assert "real Qwen/Qwen3-0.6B: 1 of 1 prompts equal" in lines
    assert "real Qwen/Qwen3-0.6B: 0 of 1 prompts equal" in lines


def _write_text_golden(root: Path, token_ids: tuple[int, ...]) -> None:
    folder = root / "text" / "qwen3-0.6b" / "transformers"
    folder.mkdir(parents=True)
    manifest = {"oracle": {"name": "transformers"}, "prompts": ["one"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    arrays = {
        "prompt_ids": np.array([1, 2, 3], np.int32),
        "token_ids": np.array(token_ids, np.int32),
        "top_ids": np.zeros((len(token_ids), 20), np.int32),
        "top_logprobs": np.zeros((len(token_ids), 20), np.float32),
    }
    np.savez(folder / "one.npz", allow_pickle=False, **arrays)
