"""What a converter does to tensors besides renaming them: one table by architecture.

A row is a pattern of canonical names and a function of the stored array and the config. It works on
the array as stored, so that order changes and values do not, where that is all it does.

Source: the converter of llama.cpp.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyvt.config.model import ModelConfig

Array = np.ndarray[Any, Any]
Transform = Callable[[Array, ModelConfig], Array]


def _pairs_adjacent(rows: Array, num_heads: int) -> Array:
    """Return q or k rows for a rotation of adjacent pairs: row ``h·D + s·(D/2) + i`` goes to
    ``h·D + 2i + s``.
    """
    half = len(rows) // num_heads // 2
    split = rows.reshape(num_heads, 2, half, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


TRANSFORMS: Mapping[str, Mapping[str, Transform]] = {
    "llama": {
        r".*\.self_attn\.q_proj\.(weight|bias)": lambda rows, config: _pairs_adjacent(
            rows, config.num_heads
        ),
        r".*\.self_attn\.k_proj\.(weight|bias)": lambda rows, config: _pairs_adjacent(
            rows, config.num_kv_heads
        ),
    },
}


def transformed(architecture: str, name: str, array: Array, config: ModelConfig) -> Array:
    """Return a tensor as GGUF files of the architecture store it."""
    for pattern, transform in TRANSFORMS.get(architecture, {}).items():
        if re.fullmatch(pattern, name):
            return transform(array, config)
    return array
