"""What a converter does to tensors besides renaming them: one table by architecture.

A row is a pattern of canonical names and a function of the stored array and the config; where a
tensor gets another canonical name or shape, or becomes two, its rows say so. Functions that change
order keep the stored dtype; those that change values return f32.

Value heads of linear attention lie in HF checkpoints by key head, in GGUF files of Qwen3.5 in the
tiled order: file head ``v·Hk + g`` is head ``g·(Hv/Hk) + v``.

Source: the converter of llama.cpp.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.config.hybrid import LinearAttentionConfig
from pyvt.config.model import ModelConfig
from pyvt.layers.gated_delta_net import stored_rows

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Transform = Callable[[Array, ModelConfig], Array]


@dataclass(frozen=True, slots=True)
class Row:
    """A transform of the tensors whose canonical names match a pattern.

    Attributes:
        pattern: matches the whole name.
        change: the new array of the stored one.
        name: the new canonical name, with the pattern's groups; None keeps it.
        shape: the new shape of the stored one; None keeps it.
    """

    pattern: str
    change: Transform
    name: str | None = None
    shape: Callable[[Shape, ModelConfig], Shape] | None = None


@dataclass(frozen=True, slots=True)
class StoredForm:
    """What a stored tensor becomes in the file: its canonical name, shape and content."""

    name: str
    shape: Shape
    change: Callable[[Array], Array]


def _pairs_adjacent(rows: Array, num_heads: int) -> Array:
    """Return q or k rows for a rotation of adjacent pairs: row ``h·D + s·(D/2) + i`` goes to
    ``h·D + 2i + s``.
    """
    half = len(rows) // num_heads // 2
    split = rows.reshape(num_heads, 2, half, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def _linear(config: ModelConfig) -> LinearAttentionConfig:
    assert config.linear_attention is not None, "the architecture has such layers"
    return config.linear_attention


def _tiled_heads(linear: LinearAttentionConfig) -> Array:
    """Return the head of the checkpoint for each value head of the file."""
    return np.arange(linear.num_value_heads).reshape(linear.num_key_heads, -1).T.ravel()


def _tiled_values(linear: LinearAttentionConfig) -> Array:
    """Return the same for each element of the values of a token."""
    size = linear.value_head_dim
    return (_tiled_heads(linear)[:, None] * size + np.arange(size)).ravel()


def _channels(array: Array, config: ModelConfig) -> Array:
    """Reorder the value rows of what goes through the convolution."""
    linear = _linear(config)
    keys = 2 * linear.key_size
    return np.concatenate([array[:keys], array[keys:][_tiled_values(linear)]])


def _value_rows(array: Array, config: ModelConfig) -> Array:
    return array[_tiled_values(_linear(config))]


def _value_columns(array: Array, config: ModelConfig) -> Array:
    return array[:, _tiled_values(_linear(config))]


def _heads(array: Array, config: ModelConfig) -> Array:
    return array[_tiled_heads(_linear(config))]


def _decay(array: Array, config: ModelConfig) -> Array:
    return -np.exp(array.astype(np.float32))


def _add_offset(array: Array, config: ModelConfig) -> Array:
    return array.astype(np.float32) + np.float32(config.norm_offset)


def _without_ones(array: Array, config: ModelConfig) -> Array:
    return array.squeeze()


def _shape_without_ones(shape: Shape, config: ModelConfig) -> Shape:
    return tuple(size for size in shape if size != 1)


def _split_rows(is_z: bool) -> Transform:
    """Return the function that takes q, k and v, or z, from a projection fused by key head."""

    def change(array: Array, config: ModelConfig) -> Array:
        linear = _linear(config)
        rows = stored_rows(linear)["in_proj_qkvz"]
        return array[rows[linear.num_channels :] if is_z else rows[: linear.num_channels]]

    return change


def _in_turn(first: Transform, then: Transform) -> Transform:
    return lambda array, config: then(first(array, config), config)


_GDN = r"(.*\.linear_attn\.)"
# The norm inside linear attention is stored as it is used.
_NORMS = Row(r"(?!.*\.linear_attn\.).*(norm|\.pre_fc_norm_\w+)\.weight", _add_offset)
_SHARED_GATE = Row(
    r".*\.mlp\.shared_expert_gate\.weight",
    lambda array, config: array[0],
    shape=lambda shape, config: shape[1:],
)
_QWEN3_5: Sequence[Row] = (
    _NORMS,
    _SHARED_GATE,
    Row(_GDN + r"in_proj_qkv\.weight", _channels),
    Row(
        _GDN + r"conv1d\.weight",
        _in_turn(_without_ones, _channels),
        shape=_shape_without_ones,
    ),
    Row(_GDN + r"in_proj_z\.weight", _value_rows),
    Row(_GDN + r"(?:in_proj_[ab]\.weight|dt_bias)", _heads),
    Row(_GDN + "A_log", _in_turn(_heads, _decay), name=r"\1A"),
    Row(_GDN + r"out_proj\.weight", _value_columns),
)
_QWEN3_NEXT: Sequence[Row] = (
    _NORMS,
    _SHARED_GATE,
    Row(
        _GDN + r"in_proj_qkvz\.weight",
        _split_rows(is_z=False),
        name=r"\1in_proj_qkv.weight",
        shape=lambda shape, config: (_linear(config).num_channels, *shape[1:]),
    ),
    Row(
        _GDN + r"in_proj_qkvz\.weight",
        _split_rows(is_z=True),
        name=r"\1in_proj_z.weight",
        shape=lambda shape, config: (_linear(config).value_size, *shape[1:]),
    ),
    Row(_GDN + r"conv1d\.weight", _without_ones, shape=_shape_without_ones),
    Row(_GDN + "A_log", _decay, name=r"\1A"),
)
TRANSFORMS: Mapping[str, Sequence[Row]] = {
    "llama": (
        Row(
            r".*\.self_attn\.q_proj\.(weight|bias)",
            lambda rows, config: _pairs_adjacent(rows, config.num_heads),
        ),
        Row(
            r".*\.self_attn\.k_proj\.(weight|bias)",
            lambda rows, config: _pairs_adjacent(rows, config.num_kv_heads),
        ),
    ),
    "qwen35": _QWEN3_5,
    "qwen35moe": _QWEN3_5,
    "qwen3next": _QWEN3_NEXT,
}


def stored_forms(
    architecture: str, name: str, shape: Shape, config: ModelConfig
) -> list[StoredForm]:
    """Return what a checkpoint's tensor becomes in GGUF files of the architecture."""
    rows = [row for row in TRANSFORMS.get(architecture, ()) if re.fullmatch(row.pattern, name)]
    return [_form(row, name, shape, config) for row in rows] or [
        StoredForm(name, shape, lambda array: array)
    ]


def _form(row: Row, name: str, shape: Shape, config: ModelConfig) -> StoredForm:
    return StoredForm(
        name if row.name is None else re.sub(row.pattern, row.name, name),
        shape if row.shape is None else row.shape(shape, config),
        lambda array: row.change(array, config),
    )
