"""ModelCase: one tiny random checkpoint, written once, and its golden logits.

A case is a config.json in the spelling of transformers 5 and a seed. Its weights are made anew from
the seed, so that nobody stores them; the golden holds their hash.

Format of a case's folder, ``goldens/models/<case>/``:

1. ``manifest.json``: ``case``; ``oracle`` (callable, versions, what was patched);
   ``weights_sha256``.
2. ``logits.npz``: ``<prompt>.ids`` i64 ``[T]``, ``<prompt>.positions`` i64 ``[T]``,
   ``<prompt>.f32`` and ``<prompt>.f64`` ``[T, V]`` (``far`` in f64 only).
3. Where the model has a draft head, ``draft.f32`` and ``draft.f64`` ``[T - 1, V]``: its logits
   behind each token but the last of the prompt ``long``.
4. The same file holds ``inv_freq`` f64 ``[R/2]`` and, for the positions ``FAR_POSITIONS``, ``cos``
   and ``sin`` f64 ``[3, R/2]`` with the attention factor in them.

Dims: T tokens, V vocabulary, R rotary size.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.config.model import FAMILIES, Family
from pyvt.testing.hybrid_shapes import (
    is_linear_layer,
    linear_attention_shapes,
    linear_attention_values,
)

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

FAR_POSITIONS = (0, 8191, 20000)
MAX_CASE_BYTES = 100_000
_VOCAB_SIZE = 97
_PROMPT_LENGTHS = {"short": 12, "long": 23}
_FAR = (0, 1, 2, 3, 8189, 8190, 8191, 19999, 20000)


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A tiny model: its config.json and what seeds its weights and prompts."""

    name: str
    config: dict[str, Any]

    @property
    def has_window(self) -> bool:
        """Whether some layer reads a window of keys."""
        return bool(self.config.get("use_sliding_window"))

    def _rng(self, what: str) -> np.random.Generator:
        return np.random.default_rng(np.frombuffer(f"{self.name}/{what}".encode(), np.uint8))

    def prompts(self) -> dict[str, tuple[Array, Array]]:
        """Return token ids and positions ``[T]`` i64 of each prompt, by name.

        The prompt ``far`` jumps to large positions; a windowed case has none, since a window
        counts keys and not positions.
        """
        rng = self._rng("prompts")
        found = {
            name: (rng.integers(0, _VOCAB_SIZE, length), np.arange(length))
            for name, length in _PROMPT_LENGTHS.items()
        }
        if not self.has_window:
            found["far"] = (rng.integers(0, _VOCAB_SIZE, len(_FAR)), np.array(_FAR))
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the checkpoint, by its name there."""
        c = self.config
        hidden, vocab = c["hidden_size"], c["vocab_size"]
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
        for i in range(c["num_hidden_layers"]):
            layer = (
                self._norm_shapes() | linear_attention_shapes(c) | self._mlp_shapes(i)
                if is_linear_layer(c, i)
                else self._norm_shapes()
                | self._attention_shapes()
                | self._mlp_shapes(i)
                | self._head_norm_shapes()
            )
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not c["tie_word_embeddings"]:
            shapes["lm_head.weight"] = (vocab, hidden)
        return shapes | self._draft_shapes()

    def _draft_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the head that drafts tokens, where there is one."""
        c = self.config
        num_layers, hidden = c.get("mtp_num_hidden_layers", 0), c["hidden_size"]
        if not num_layers:
            return {}
        shapes: dict[str, tuple[int, ...]] = {"mtp.fc.weight": (hidden, 2 * hidden)}
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{name}.weight"] = (hidden,)
        for i in range(num_layers):
            layer = (
                self._norm_shapes()
                | self._attention_shapes()
                | self._mlp_shapes(c["num_hidden_layers"] + i)
                | self._head_norm_shapes()
            )
            shapes |= {f"mtp.layers.{i}.{name}": shape for name, shape in layer.items()}
        return shapes

    @property
    def family(self) -> Family:
        """The family of the model."""
        return FAMILIES[self.config["model_type"].removesuffix("_text")]

    def _norm_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = (self.config["hidden_size"],)
        return {"input_layernorm.weight": shape, "post_attention_layernorm.weight": shape}

    def _attention_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's projections."""
        c = self.config
        hidden = c["hidden_size"]
        head_dim = c.get("head_dim") or hidden // c["num_attention_heads"]
        q, kv = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
        matrices = {
            "self_attn.q_proj": (2 * q if self.family.has_output_gate else q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
        }
        return _with_biases(matrices, has_bias=c.get("attention_bias", False))

    def _head_norm_shapes(self) -> dict[str, tuple[int, ...]]:
        if not self.family.qk_norm:
            return {}
        shape = (self.config["head_dim"],)
        return {"self_attn.q_norm.weight": shape, "self_attn.k_norm.weight": shape}

    def _mlp_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's MLP, or of its router and each of its experts."""
        c = self.config
        hidden = c["hidden_size"]
        is_sparse = c.get("num_experts") and (layer + 1) % c.get("decoder_sparse_step", 1) == 0
        if not is_sparse or layer in c.get("mlp_only_layers", ()):
            matrices = _mlp_matrices("mlp", hidden, c["intermediate_size"])
            return _with_biases(matrices, has_bias=c.get("mlp_bias", False))
        shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (c["num_experts"], hidden)}
        for i in range(c["num_experts"]):
            matrices = _mlp_matrices(f"mlp.experts.{i}", hidden, c["moe_intermediate_size"])
            shapes |= _with_biases(matrices, has_bias=False)
        width = c.get("shared_expert_intermediate_size")
        if width:
            matrices = _mlp_matrices("mlp.shared_expert", hidden, width)
            shapes |= _with_biases(
                matrices | {"mlp.shared_expert_gate": (1, hidden)}, has_bias=False
            )
        return shapes

    def weights(self) -> Arrays:
        """Return the checkpoint's tensors in f32, scaled so that logits reach about 5."""
        rng = self._rng("weights")
        return {
            name: _values(rng, name, shape, self.family.norm_offset).astype(np.float32)
            for name, shape in self.shapes().items()
        }


def _mlp_matrices(prefix: str, hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    return {
        f"{prefix}.gate_proj": (inner, hidden),
        f"{prefix}.up_proj": (inner, hidden),
        f"{prefix}.down_proj": (hidden, inner),
    }


def _with_biases(
    matrices: dict[str, tuple[int, int]], *, has_bias: bool
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in matrices.items():
        shapes[f"{name}.weight"] = shape
        if has_bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


_EXPERT = re.compile(r"(.*\.mlp\.experts\.)\d+\.(\w+_proj\.weight)")


def stacks_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the tensors of a checkpoint with each layer's experts in stacks, as in GGUF files.

    Each has the names that it is made of, which are its own unless they are experts'.
    """
    stacks: dict[str, list[str]] = {}
    for name in names:
        found = _EXPERT.fullmatch(name)
        stacks.setdefault(found[1] + found[2] if found else name, []).append(name)
    return stacks


def is_stack(name: str, parts: list[str]) -> bool:
    """Whether a tensor of ``stacks_of`` is made of experts."""
    return parts[0] != name


def stacked_experts(weights: Arrays) -> Arrays:
    """Return a checkpoint whose experts are one by one with them in stacks, as in GGUF files."""
    return {
        name: np.stack([weights[part] for part in parts])
        if is_stack(name, parts)
        else weights[name]
        for name, parts in stacks_of(weights).items()
    }


def fused_experts(weights: Arrays) -> Arrays:
    """Return the same with the gate and up of experts in one stack, as transformers keeps them."""
    fused: Arrays = {}
    for name, array in stacked_experts(weights).items():
        prefix, _, projection = name.partition(".mlp.experts.")
        if projection == "gate_proj.weight":
            fused[f"{prefix}.mlp.experts.gate_up_proj"] = array
        elif projection == "up_proj.weight":
            gate = fused[f"{prefix}.mlp.experts.gate_up_proj"]
            fused[f"{prefix}.mlp.experts.gate_up_proj"] = np.concatenate([gate, array], axis=1)
        else:
            fused[name.replace("experts.down_proj.weight", "experts.down_proj")] = array
    return fused


def _values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], norm_offset: float
) -> Array:
    special = linear_attention_values(rng, name, shape)
    if special is not None:
        return special
    values: Array = rng.standard_normal(shape)
    if name.endswith("norm.weight") or ".pre_fc_norm" in name:
        return 1 - norm_offset + 0.2 * values
    if name.endswith(".bias"):
        return 0.3 * values
    if name in ("lm_head.weight", "model.embed_tokens.weight"):
        return 0.25 * values
    scaled: Array = values * 1.2 / np.sqrt(shape[1])
    return scaled


def weights_sha256(weights: Arrays) -> str:
    """Return a hash of names, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN3 = _LLAMA | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
_QWEN3_5 = _QWEN3 | {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}
_QWEN3_NEXT = _QWEN3_5 | {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "num_experts": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
    },
}
_QWEN3_MOE = _QWEN3 | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
_HYBRID_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
_TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_QWEN3_5_MOE = (
    _QWEN3_5
    | {"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"]}
    | _HYBRID_EXPERTS
)
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN_FULL = _YARN | {
    "beta_fast": 24.0,
    "beta_slow": 2.0,
    "mscale": 0.8,
    "mscale_all_dim": 0.6,
    "truncate": False,
}


def _case(name: str, base: dict[str, Any], **changes: Any) -> ModelCase:
    return ModelCase(name, base | changes)


MODEL_CASES = (
    _case("llama", _LLAMA),
    _case("llama_tied", _LLAMA, tie_word_embeddings=True),
    _case("llama_mha", _LLAMA, num_key_value_heads=4),
    _case("llama_mqa_three_layers", _LLAMA, num_key_value_heads=1, num_hidden_layers=3),
    _case("llama_head_dim", _LLAMA, head_dim=20),
    _case("llama_biases", _LLAMA, attention_bias=True, mlp_bias=True),
    _case("llama_linear", _LLAMA, rope_parameters=_LINEAR),
    _case("llama_llama3", _LLAMA, rope_parameters=_LLAMA3, head_dim=24),
    _case("llama_yarn", _LLAMA, rope_parameters=_YARN, head_dim=24),
    _case("qwen3", _QWEN3),
    _case("qwen3_tied", _QWEN3, tie_word_embeddings=True, num_attention_heads=6),
    _case("qwen3_biases", _QWEN3, attention_bias=True),
    _case("qwen3_linear", _QWEN3, rope_parameters=_LINEAR),
    _case("qwen3_llama3", _QWEN3, rope_parameters=_LLAMA3, head_dim=24),
    _case("qwen3_yarn", _QWEN3, rope_parameters=_YARN_FULL, head_dim=24),
    _case(
        "qwen3_window",
        _QWEN3,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=1,
    ),
    _case(
        "qwen3_layer_types",
        _QWEN3,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    _case("qwen3_5", _QWEN3_5),
    _case(
        "qwen3_5_layer_types",
        _QWEN3_5,
        tie_word_embeddings=True,
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=3,
        linear_num_value_heads=3,
        linear_conv_kernel_dim=2,
    ),
    _case("qwen3_next", _QWEN3_NEXT),
    _case("qwen3_5_moe", _QWEN3_5_MOE, num_experts=5),
    _case("qwen3_5_mtp", _QWEN3_5, mtp_num_hidden_layers=1, **_TWO_LAYERS),
    _case("qwen3_5_moe_mtp", _QWEN3_5_MOE, mtp_num_hidden_layers=1, **_TWO_LAYERS),
    _case(
        "qwen3_next_moe",
        _QWEN3_NEXT | _HYBRID_EXPERTS,
        num_hidden_layers=5,
        norm_topk_prob=True,
    ),
    _case("qwen3_moe", _QWEN3_MOE),
    _case("qwen3_moe_tied", _QWEN3_MOE, tie_word_embeddings=True, num_experts_per_tok=5),
    _case("qwen3_moe_as_they_are", _QWEN3_MOE, norm_topk_prob=False, num_experts_per_tok=3),
    _case(
        "qwen3_moe_some_dense",
        _QWEN3_MOE,
        num_hidden_layers=5,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    ),
    _case("qwen3_moe_window", _QWEN3_MOE, use_sliding_window=True, sliding_window=5),
)
MODEL_CASES_BY_NAME = {case.name: case for case in MODEL_CASES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGolden:
    """What transformers gave for a case."""

    case: str
    weights_sha256: str
    oracle: dict[str, Any]
    arrays: Arrays


def write_model_golden(root: Path, golden: ModelGolden) -> None:
    """Write the golden of a case below ``root/models``."""
    folder = root / "models" / golden.case
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "logits.npz"
    np.savez_compressed(path, allow_pickle=False, **golden.arrays)
    size = path.stat().st_size
    assert size <= MAX_CASE_BYTES, f"{path}: {size} bytes, a golden holds {MAX_CASE_BYTES}"
    manifest = {
        "case": golden.case,
        "weights_sha256": golden.weights_sha256,
        "oracle": golden.oracle,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def read_model_goldens(root: Path) -> Iterator[ModelGolden]:
    """Yield every model golden below ``root/models``, by case."""
    for path in sorted((root / "models").glob("*/manifest.json")):
        manifest = json.loads(path.read_text())
        with np.load(path.with_name("logits.npz")) as stored:
            arrays = {name: stored[name] for name in stored.files}
        yield ModelGolden(
            case=manifest["case"],
            weights_sha256=manifest["weights_sha256"],
            oracle=manifest["oracle"],
            arrays=arrays,
        )
