"""Models of a real shape with random weights, for measurements of speed and memory.

``shape:qwen3-0.6b:q8_0`` names one: a shape of ``SHAPES`` and a row of ``MIXES``. The file is
written once, below ``$PYVT_HOME/shapes``; the same tensor has the same values in every file of a
plain dtype, so that a GGUF file and a folder of safetensors in bf16 are one model.

Dims: N rows, K columns.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pyvt import envs
from pyvt.config.model import FAMILIES, ModelConfig
from pyvt.convert.mixes import FALLBACKS, deserves_more
from pyvt.errors import ConfigError, did_you_mean
from pyvt.mathutil import round_up
from pyvt.tensor.dtype import DType, dtype_named
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import I32, Typed, gguf_info, gguf_pair, write_safetensors
from pyvt.testing.hybrid_shapes import gguf_form, gguf_tensor
from pyvt.testing.model_cases import ModelCase, is_stack, stacks_of
from pyvt.testing.model_runs import gguf_metadata
from pyvt.testing.random_blocks import random_weight
from pyvt.weights.gguf_names import gguf_name

Array = np.ndarray[Any, Any]

PREFIX = "shape:"
_ALIGNMENT = 32
# Never in blocks: routers and gates of one row.
_PLAIN = (".mlp.gate.weight", ".mlp.shared_expert_gate.weight")
_MAGNITUDE = 0.03
# Half of a BPE vocabulary's alphabet: bytes that stand for themselves.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_QWEN3_MOE = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
_HYBRID = _QWEN3 | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
_TINY_HYBRID = _TINY | {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_HYBRID_MOE = _HYBRID | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
}
# Of Qwen3.6-35B-A3B, but for the number of layers.
_QWEN3_6 = {
    **_HYBRID_MOE,
    "vocab_size": 248320,
    "hidden_size": 2048,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    },
    # A quarter of the layers of Qwen3-30B-A3B: two engines fit into 24 GB with it.
    "qwen3-30b-a3b-quarter": {
        **_QWEN3_MOE,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    # Qwen3.6-35B-A3B, 21 GB in Q4_K_M, and a quarter and a tenth of its layers.
    "qwen3.6-35b-a3b": {**_QWEN3_6, "num_hidden_layers": 40},
    "qwen3.6-35b-a3b-quarter": {**_QWEN3_6, "num_hidden_layers": 10},
    "qwen3.6-35b-a3b-tenth": {**_QWEN3_6, "num_hidden_layers": 4},
    # A hybrid of 75 million weights in its layers: small, but no cache holds them.
    "small-hybrid": {
        **_HYBRID,
        **_TINY_HYBRID,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
    },
    # Small enough for a test.
    "tiny": _QWEN3 | _TINY,
    "tiny-hybrid-dense": _HYBRID | _TINY_HYBRID,
    "tiny-hybrid": {
        **_HYBRID_MOE,
        **_TINY_HYBRID,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    },
    "tiny-moe": {
        **_QWEN3_MOE,
        **_TINY,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
    },
}

Mix = Callable[[str, int], str]


def _q4_k_m(name: str, num_layers: int) -> str:
    """Return the format of a matrix in llama.cpp's mix of that name: half of some in Q6_K."""
    if "embed_tokens" in name or "lm_head" in name:
        return "q6_k"
    if "v_proj" in name or "down_proj" in name:
        return "q6_k" if deserves_more(int(name.split(".")[2]), num_layers) else "q4_k"
    return "q4_k"


def _uniform(dtype: str) -> Mix:
    return lambda name, num_layers: dtype


MIXES: dict[str, Mix] = {
    "q4_k_m": _q4_k_m,
    **{
        name: _uniform(name)
        for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q6_k")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeModel:
    """A shape and how its matrices are stored."""

    shape: str
    mix: str

    @classmethod
    def named(cls, name: str) -> "ShapeModel":
        """Return the model of ``shape:SHAPE:MIX``. Raises ConfigError with the known names."""
        shape, _, mix = name.removeprefix(PREFIX).partition(":")
        for what, given, known in (("shape", shape, SHAPES), ("mix", mix, MIXES)):
            if given not in known:
                hint = did_you_mean(given, known)
                raise ConfigError(f"[shape] {what}: {given!r} of {name!r} is unknown; {hint}")
        return cls(shape=shape, mix=mix)

    @property
    def case(self) -> ModelCase:
        """The config and the shapes of all tensors."""
        return ModelCase(name=self.shape, config=SHAPES[self.shape])

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], DType]]:
        """Yield the checkpoint's tensors: name, shape and dtype."""
        num_layers = SHAPES[self.shape]["num_hidden_layers"]
        for name, shape in self.case.shapes().items():
            is_matrix = len(shape) == 2 and not name.endswith(_PLAIN)
            dtype = dtype_named(MIXES[self.mix](name, num_layers) if is_matrix else "f32")
            while shape[-1] % dtype.block_size:
                dtype = dtype_named(FALLBACKS[dtype.name])
            yield name, shape, dtype

    def gguf(self) -> Path:
        """Return the GGUF file of the model, written where it is not there."""
        path = _folder() / f"{self.shape}-{self.mix}.gguf"
        if not path.exists():
            part = path.with_name(f".{path.name}.partial")
            write_shape_gguf(part, self)
            part.rename(path)
        return path

    def safetensors(self) -> Path:
        """Return the folder with the model in a plain dtype, written where it is not there.

        Raises ConfigError for a mix of blocks.
        """
        folder = _folder() / f"{self.shape}-{self.mix}"
        if not (folder / "model.safetensors").exists():
            tensors = {n: random_tensor(n, s, d) for n, s, d in self.tensors()}
            if not all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
                raise ConfigError(f"[shape] mix: expected a plain dtype, got {self.mix!r}")
            write_safetensors(folder, tensors, SHAPES[self.shape])  # type: ignore[arg-type]
        return folder


def _folder() -> Path:
    folder = Path(envs.PYVT_HOME.get()).expanduser() / "shapes"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def random_tensor(name: str, shape: tuple[int, ...], dtype: DType) -> Array | QuantTensor:
    """Return the tensor of that name: ones for a norm, else random values about 0.03 in size."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    rng = np.random.default_rng(np.frombuffer(name.encode(), np.uint8))
    if dtype.is_block:
        return random_weight(rng, dtype, *shape, magnitude=_MAGNITUDE)
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(_MAGNITUDE)
    assert dtype.numpy is not None, "a plain dtype has a NumPy dtype"
    # Values in bf16 are exact in f32 and f16, so that all plain files hold one model.
    return values.astype(ml_dtypes.bfloat16).astype(dtype.numpy)


def write_shape_gguf(path: Path, model: ShapeModel) -> None:
    """Write the model matrix by matrix; at most one is in memory."""
    config = ModelConfig.from_hf(SHAPES[model.shape])
    rows = {name: (name, shape, dtype) for name, shape, dtype in model.tensors()}
    infos, stacks, offset = [], stacks_of(rows), 0
    for name, parts in stacks.items():
        _, shape, dtype = rows[parts[0]]
        if is_stack(name, parts):
            shape = (len(parts), *shape)
        canonical, shape = gguf_form(name, shape)
        stored = gguf_name(FAMILIES[config.family].gguf, canonical)
        assert stored is not None, f"{name}: has a name in GGUF"
        assert dtype.gguf_id is not None, f"{dtype}: has a number in GGUF"
        infos.append(gguf_info(stored, shape[::-1], dtype.gguf_id, offset))
        num_rows = int(np.prod(shape[:-1]))
        offset = round_up(offset + num_rows * dtype.row_bytes(shape[-1]), _ALIGNMENT)
    pairs = [
        gguf_pair(k, v) for k, v in (gguf_metadata(config) | byte_level_tokenizer(config)).items()
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs))
    header += b"".join(pairs) + b"".join(infos)
    with path.open("wb") as file:
        file.write(header.ljust(round_up(len(header), _ALIGNMENT), b"\0"))
        for parts in stacks.values():
            for part in parts:
                tensor = random_tensor(*rows[part])
                if isinstance(tensor, QuantTensor):  # random rows have no order
                    file.write(tensor.blocks.tobytes())
                else:
                    file.write(gguf_tensor(config, part, tensor)[1].tobytes())
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))


def byte_level_tokenizer(config: ModelConfig) -> dict[str, Any]:
    """Return the metadata of a byte-level BPE vocabulary of the model's size, with one merge."""
    rest = [byte for byte in range(256) if byte not in _PRINTABLE]
    alphabet = [chr(b if b in _PRINTABLE else 256 + rest.index(b)) for b in range(256)]
    tokens = [*alphabet, f"{alphabet[97]}{alphabet[98]}"]
    end_id = config.vocab_size - 1
    tokens += [f"[tok{i}]" for i in range(len(tokens), end_id)] + ["<|endoftext|>"]
    return {
        "general.name": "random weights",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed(I32, [1] * end_id + [3]),
        "tokenizer.ggml.merges": [f"{alphabet[97]} {alphabet[98]}"],
        "tokenizer.ggml.eos_token_id": end_id,
        "tokenizer.ggml.bos_token_id": end_id,
        "tokenizer.ggml.add_bos_token": False,
    }
