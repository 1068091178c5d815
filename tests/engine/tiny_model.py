"""Tiny random models with a byte tokenizer on disk, for engines over the real worker."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase

EOS_TEXT, PAD_ROWS = "<eos>", 3
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258 + PAD_ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 3,
}
HYBRID_CONFIG: dict[str, Any] = MODEL_CASES_BY_NAME["qwen3_5_mtp"].config | {
    "vocab_size": CONFIG["vocab_size"],
    "eos_token_id": 3,
}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tiny_model(
    folder: Path,
    *,
    has_tokenizer: bool = True,
    spoiled: str | None = None,
    generation_config: dict[str, Any] | None = None,
    config: dict[str, Any] = CONFIG,
    **settings: Any,
) -> Path:
    """Write the model, or another of its vocabulary.

    ``spoiled`` names a tensor of NaN, ``settings`` are those of its config.
    """
    config = config | settings
    weights = ModelCase("engine", config).weights()
    if spoiled is not None:
        weights[spoiled] = np.full_like(weights[spoiled], np.nan)
    files: dict[str, Any] = {"generation_config.json": generation_config or {}}
    if has_tokenizer:
        files["tokenizer.json"] = _tokenizer_json()
        files["tokenizer_config.json"] = {"eos_token": EOS_TEXT, "chat_template": TEMPLATE}
    return write_safetensors(folder, weights, config, files=files)


def _tokenizer_json() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(EOS_TEXT, special=True), AddedToken("<tool>", special=False)])
    return json.dumps(json.loads(tokenizer.to_str()))
