"""Write what ``pyvt parity trace`` compares with: transformers' residual stream after each layer.

    python parity/dump_trace.py CASE OUT.npz             (a tiny model of testing/model_cases.py)
    python parity/dump_trace.py FOLDER OUT.npz ID ...    (a released checkpoint, and token ids)

The file holds ``prompt_ids`` i64 ``[T]``, ``layer.<i>`` f32 ``[T, H]``, ``logits`` f32 ``[T, V]``.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from parity.dump_model import build_model
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME


def _load(name: str, ids: list[str]) -> tuple[Any, list[int]]:
    """Return the model and the ids of the prompt."""
    if name in MODEL_CASES_BY_NAME:
        case = MODEL_CASES_BY_NAME[name]
        family = case.config["model_type"]
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        prompt, _ = case.prompts()["short"]
        return build_model(case, module, torch.float32), prompt.tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        name, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval(), [int(token) for token in ids]


def main(name: str, out: Path, ids: list[str]) -> None:
    """Dump one prompt of a model."""
    model, prompt_ids = _load(name, ids)
    arrays = {"prompt_ids": np.array(prompt_ids, np.int64)}

    def keep(layer_idx: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            arrays[f"layer.{layer_idx}"] = hidden.reshape(-1, hidden.shape[-1]).numpy().copy()

        return hook

    for layer_idx, layer in enumerate(model.model.layers):
        layer.register_forward_hook(keep(layer_idx))
    with torch.no_grad():
        arrays["logits"] = model(torch.tensor([prompt_ids])).logits[0].numpy()
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, allow_pickle=False, **arrays)
    print(f"{out}: {len(prompt_ids)} tokens, {len(model.model.layers)} layers")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
