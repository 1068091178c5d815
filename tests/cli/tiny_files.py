"""Tiny random checkpoints as files."""

from pathlib import Path
from typing import Any

from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_folder(folder: Path, case: str = "llama", **settings: Any) -> Path:
    """Write a case as safetensors; ``settings`` are those of ``write_safetensors``."""
    model: ModelCase = MODEL_CASES_BY_NAME[case]
    return write_safetensors(folder, model.weights(), model.config, **settings)


def write_talker(folder: Path, tokenizer: Path, *, num_positions: int = 512) -> Path:
    """Write a tiny Qwen3 with the true tokenizer, which can be asked things."""
    case = ModelCase(
        "talker",
        MODEL_CASES_BY_NAME["qwen3_tied"].config
        | {"vocab_size": 151936, "hidden_size": 16, "head_dim": 4, "num_attention_heads": 2}
        | {"eos_token_id": 151645, "max_position_embeddings": num_positions},
    )
    names = ("tokenizer.json", "tokenizer_config.json")
    files = {name: (tokenizer / name).read_text(encoding="utf-8") for name in names}
    return write_safetensors(folder, case.weights(), case.config, files=files)
