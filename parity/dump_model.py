"""Write the goldens of whole tiny models: transformers on the weights of every ModelCase.

Run in an environment with torch and transformers (``pip install '.[parity]'``):

    python parity/dump_model.py [CASE ...]

Logits of all positions in f32 as transformers computes them, and in f64 with its own casts to f32
replaced (``parity/hf_f64.py``), attention in the eager form.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers

from parity.hf_f64 import SUFFIX, modeling, reset_rope
from pyvt.errors import did_you_mean
from pyvt.testing.model_cases import (
    FAR_POSITIONS,
    MODEL_CASES,
    MODEL_CASES_BY_NAME,
    ModelCase,
    ModelGolden,
    fused_experts,
    weights_sha256,
    write_model_golden,
)

GOLDENS = Path(__file__).with_name("goldens")


def build_model(case: ModelCase, module: ModuleType, dtype: torch.dtype) -> Any:
    settings = {k: v for k, v in case.config.items() if k not in ("model_type", "architectures")}
    kind = transformers.CONFIG_MAPPING[case.config["model_type"]]
    config = kind(**settings, attn_implementation="eager", experts_implementation="eager")
    model = getattr(module, case.config["architectures"][0])(config)
    weights = {k: v for k, v in _tensors(case).items() if not k.startswith("mtp.")}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    return model.to(dtype).eval()


def _tensors(case: ModelCase) -> dict[str, torch.Tensor]:
    return {k: torch.from_numpy(v) for k, v in fused_experts(case.weights()).items()}


class DraftHead(torch.nn.Module):
    """The head that transformers leaves out, of its layers and norms in the order of vLLM."""

    def __init__(self, case: ModelCase, module: ModuleType, model: Any) -> None:
        super().__init__()
        config, prefix = model.config, case.config["architectures"][0].removesuffix("ForCausalLM")
        norm = getattr(module, f"{prefix}RMSNorm")
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm(size, eps), norm(size, eps)
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        like = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([getattr(module, f"{prefix}DecoderLayer")(config, like)])
        self.norm = norm(size, eps)
        tensors = {k.removeprefix("mtp."): v for k, v in _tensors(case).items() if "mtp." in k}
        self.load_state_dict(tensors, strict=True)
        self.to(model.dtype).eval()

    def forward(self, model: Any, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the logits of drafts behind each token but the last."""
        input_ids, places = (torch.from_numpy(array)[None] for array in (ids, positions))
        with torch.no_grad():
            text = model.model
            hidden = text(input_ids=input_ids, position_ids=places, use_cache=False)
            behind = text.embed_tokens(input_ids[:, 1:])
            both = [
                self.pre_fc_norm_embedding(behind),
                self.pre_fc_norm_hidden(hidden.last_hidden_state[:, :-1]),
            ]
            x, places = self.fc(torch.cat(both, -1)), places[:, :-1]
            num_tokens = x.shape[1]
            mask = torch.full((num_tokens, num_tokens), -1e30, dtype=x.dtype).triu(1)
            x = self.layers[0](
                x,
                position_embeddings=text.rotary_emb(x, places[None].expand(3, -1, -1)),
                attention_mask=mask[None, None],
                position_ids=places,
            )
            return model.lm_head(self.norm(x))[0].numpy()


def _logits(model: Any, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    input_ids = torch.from_numpy(ids)[None]
    with torch.no_grad():
        out = model(
            input_ids=input_ids,
            position_ids=torch.from_numpy(positions)[None],
            attention_mask=torch.ones_like(input_ids),
            use_cache=False,
        )
    return out.logits[0].numpy()


def _rotary(model: Any) -> dict[str, np.ndarray]:
    rotary = model.model.rotary_emb
    positions = torch.tensor([FAR_POSITIONS])
    cos, sin = rotary(torch.zeros(1, dtype=torch.float64), positions)
    half = cos.shape[-1] // 2
    return {
        "inv_freq": rotary.inv_freq.numpy(),
        "cos": cos[0, :, :half].numpy(),
        "sin": sin[0, :, :half].numpy(),
    }


def dump(case: ModelCase) -> ModelGolden:
    """Return the golden of a case."""
    family = case.config["model_type"].removesuffix("_text")
    plain = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    narrow = build_model(case, plain, torch.float32)
    wide = build_model(case, modeling(family), torch.float64)
    reset_rope(wide)
    arrays = _rotary(wide)
    assert arrays["inv_freq"].dtype == np.float64, "a cast to f32 was missed"
    for name, (ids, positions) in case.prompts().items():
        arrays |= {f"{name}.ids": ids, f"{name}.positions": positions}
        arrays[f"{name}.f64"] = _logits(wide, ids, positions)
        if name != "far":
            arrays[f"{name}.f32"] = _logits(narrow, ids, positions)
        if name == "long" and "mtp.fc.weight" in case.shapes():
            for dtype, module, model in (("f32", plain, narrow), ("f64", modeling(family), wide)):
                head = DraftHead(case, module, model)
                arrays[f"draft.{dtype}"] = head(model, ids, positions)
    return ModelGolden(
        case=case.name,
        weights_sha256=weights_sha256(case.weights()),
        oracle={
            "callable": f"transformers.{case.config['architectures'][0]}",
            "attention": "eager",
            "f64": f"modeling_{family}.py and modeling_rope_utils.py {SUFFIX}",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        arrays=arrays,
    )


def main(names: list[str]) -> None:
    """Dump the cases of these names, all where none is given."""
    for name in names:
        if name not in MODEL_CASES_BY_NAME:
            hint = did_you_mean(name, MODEL_CASES_BY_NAME)
            sys.exit(f"error: [dump] case: {name!r} is unknown; {hint}")
    torch.set_num_threads(1)  # the order of sums, and so the last bit, depends on it
    for case in MODEL_CASES:
        if not names or case.name in names:
            golden = dump(case)
            write_model_golden(GOLDENS, golden)
            error = np.abs(golden.arrays["long.f32"] - golden.arrays["long.f64"]).max()
            largest = np.abs(golden.arrays["long.f64"]).max()
            print(f"{case.name}: largest logit {largest:.2f}, f32 against f64 {error:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
