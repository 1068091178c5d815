"""Files of ``pyvt quantize`` in llama.cpp, where a Python with llama-cpp-python is at hand."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.convert import quantize_model
from pyvt.testing.model_runs import all_logits, load_case
from pyvt.tokenizer import hf_tokenizer
from tests.convert.tiny_source import bpe_json, tiny_case, write_source

TEXT = "hello wo 12345 <think>hell</think> naïve — abc"
PRE_TOKENIZERS = {
    "llama": "smollm",
    "qwen3": "qwen2",
    "qwen3_moe": "qwen2",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35",
    "qwen3_5_moe_mtp": "qwen35",
    "qwen3_next_moe": "qwen2",
}


@pytest.fixture(scope="module")
def llama_python(repo: Path) -> Path:
    python = repo / ".oracle/llama/bin/python"
    if not python.exists():
        pytest.skip("no .oracle/llama/bin/python with llama-cpp-python")
    return python


def run(python: Path, repo: Path, model: Path) -> dict[str, Any]:
    command = [str(python), str(repo / "parity/run_llama_cpp.py"), str(model), TEXT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("file_type", ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q4_K_M", "Q4_0"])
@pytest.mark.parametrize("family", PRE_TOKENIZERS)
def test_llama_cpp_reads_the_file_and_gives_the_same_tokens(
    tmp_path: Path, repo: Path, llama_python: Path, family: str, file_type: str
) -> None:
    content = bpe_json(PRE_TOKENIZERS[family])
    changes: dict[str, Any] = {"tie_word_embeddings": True}
    if "num_experts" in tiny_case(family).config:
        # All of them: a choice would turn on a last bit, and the direction with it.
        changes["num_experts_per_tok"] = tiny_case(family).config["num_experts"]
    source = write_source(tmp_path / "model", family, content, **changes)
    quantize_model(source, tmp_path / "out.gguf", file_type)

    found = run(llama_python, repo, tmp_path / "out.gguf")

    ids = hf_tokenizer(json.dumps(content), {}).encode(TEXT)
    assert found["ids"] == ids
    model = load_case(tmp_path / "out.gguf").model
    (logits,) = all_logits(model, [(np.array(ids), np.arange(len(ids)))])
    # llama.cpp quantizes activations; the direction of the logits stays.
    theirs = np.array(found["logits"])
    cosine = logits[-1] @ theirs / np.linalg.norm(logits[-1]) / np.linalg.norm(theirs)
    assert cosine > 0.99
    if file_type in ("F32", "F16"):
        # The best token, or one that is as good but for the rounding of f16.
        chosen = logits[np.arange(len(ids)), found["argmax"]]
        assert (logits.max(-1) - chosen < 0.01 * logits.std(-1)).all()
