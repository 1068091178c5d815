"""The tensors of linear attention, for tiny checkpoints of hybrid models.

Dims: H hidden size, Hk key heads, Hv value heads, Dk and Dv their sizes, Kc conv kernel, C conv
channels.
"""

from typing import Any

import numpy as np

from pyvt.config.hybrid import LINEAR_ATTENTION
from pyvt.config.model import FAMILIES, ModelConfig
from pyvt.layers.gated_delta_net import stored_rows

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]


def is_linear_layer(config: dict[str, Any], layer_idx: int) -> bool:
    """Return whether a layer of a config.json has linear attention."""
    if not FAMILIES[config["model_type"].removesuffix("_text")].is_hybrid:
        return False
    kinds = config.get("layer_types")
    if kinds is not None:
        return bool(kinds[layer_idx] == LINEAR_ATTENTION)
    return (layer_idx + 1) % int(config.get("full_attention_interval", 4)) != 0


def linear_attention_shapes(config: dict[str, Any]) -> Shapes:
    """Return the shapes of the tensors of one layer with linear attention, ``linear_attn.*``."""
    shape = ModelConfig.from_hf(config).linear_attention
    assert shape is not None, "a hybrid has such layers"
    hidden = config["hidden_size"]
    found: Shapes = {
        f"{name}.weight": (shape.projection_size(name), hidden) for name in shape.projections
    }
    found |= {
        "conv1d.weight": (shape.num_channels, 1, shape.conv_kernel),
        "A_log": (shape.num_value_heads,),
        "dt_bias": (shape.num_value_heads,),
        "norm.weight": (shape.value_head_dim,),
        "out_proj.weight": (hidden, shape.value_size),
    }
    return {f"linear_attn.{name}": size for name, size in found.items()}


def linear_attention_values(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> Array | None:
    """Return values of a tensor that is special to linear attention, None for others.

    Decays from fast to slow, so that the state matters over the whole prompt.
    """
    if name.endswith(".A_log"):
        decays: Array = np.log(rng.uniform(0.05, 4.0, shape))
        return decays
    if name.endswith(".dt_bias"):
        values: Array = rng.uniform(-3.0, 1.0, shape)
        return values
    if name.endswith(".conv1d.weight"):
        taps: Array = rng.standard_normal(shape) / np.sqrt(shape[2])
        return taps
    if name.endswith(".linear_attn.norm.weight"):
        return 1 + 0.2 * rng.standard_normal(shape)
    return None


def gguf_form(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the canonical name and the shape that ``gguf_tensor`` gives a tensor."""
    if name.endswith(".linear_attn.A_log"):
        return f"{name.removesuffix('A_log')}A", shape
    if name.endswith((".linear_attn.conv1d.weight", ".mlp.shared_expert_gate.weight")):
        return name, tuple(size for size in shape if size != 1)
    return name, shape


def gguf_tensor(config: ModelConfig, name: str, array: Array) -> tuple[str, Array]:
    """Return the canonical name and the values that the upstream converter makes of a tensor.

    Norms get their offset, the decay its exponential, convolutions lose their axis of size 1, and
    value heads change from the order of Hugging Face to the tiled one where the family has it.
    """
    shape = config.linear_attention
    if shape is None:
        return name, array
    if name.endswith(".mlp.shared_expert_gate.weight"):
        return name, array[0]
    if ".linear_attn." not in name:
        is_norm = name.endswith("norm.weight") or ".pre_fc_norm" in name
        return name, array + array.dtype.type(config.norm_offset if is_norm else 0)
    stem = name.split(".linear_attn.")[1].removesuffix(".weight")
    if stem == "conv1d":
        array = array[:, 0]
    if FAMILIES[config.family].head_map == "tiled":
        array = _tiled(config, stem, array)
    if stem == "A_log":
        return name.removesuffix("A_log") + "A", -np.exp(array)
    return name, np.ascontiguousarray(array)


def _tiled(config: ModelConfig, stem: str, array: Array) -> Array:
    shape = config.linear_attention
    assert shape is not None, "a layer with linear attention has a shape"
    heads, size = shape.num_value_heads, shape.value_head_dim
    order = np.arange(heads).reshape(shape.num_key_heads, -1).T.ravel()
    values = (order[:, None] * size + np.arange(size)).ravel()
    if stem in ("in_proj_qkv", "conv1d"):
        keys = 2 * shape.key_size
        return np.concatenate([array[:keys], array[keys:][values]])
    if stem == "in_proj_z":
        order = values
    if stem == "norm":
        return array
    chosen: Array = array[:, values] if stem == "out_proj" else array[order]
    return chosen


def split_projections(config: ModelConfig, weights: dict[str, Array]) -> dict[str, Array]:
    """Return the weights of a checkpoint with fused projections as newer GGUF files hold them.

    q, k, v and z lie apart there, b and a stay fused.
    """
    shape = config.linear_attention
    assert shape is not None, "a hybrid has such layers"
    orders, found = stored_rows(shape), {}
    for name, array in weights.items():
        if not name.endswith(".in_proj_qkvz.weight"):
            found[name] = array
            continue
        prefix = name.removesuffix("in_proj_qkvz.weight")
        rows = array[orders["in_proj_qkvz"]]
        found[f"{prefix}in_proj_qkv.weight"] = rows[: shape.num_channels]
        found[f"{prefix}in_proj_z.weight"] = rows[shape.num_channels :]
    return found
