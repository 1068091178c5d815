"""The bytes of blocks that begin with one f32 scale, by format.

1. ``int4``: ``scale``; ``raised``, 16 less the zero, 0 to 16; ``qs``: of each 32 columns 16 bytes,
   the first 16 columns in their low halves. Values are ``scale · (q + raised - 16)``.
2. ``int8``: ``scale``; ``qs``, signed. Values are ``scale · q``.
3. ``nvfp4``: ``scale``; ``sc``, an e4m3 number for each 16 columns; ``qs``: of each 16 columns 8
   bytes, the first 8 columns in their low halves, of e2m1 numbers. Values are
   ``e2m1(q) · (e4m3(sc) · scale)``.
4. ``fp8``: ``scale``; ``qs``, e4m3 numbers. Values are ``e4m3(q) · scale``.
"""

from typing import Any

import numpy as np

from pyvt.tensor.dtype import SCALED_BLOCKS, DType

_SCALE = ("scale", "<f4")


def _fields(kind: str, size: int) -> list[Any]:
    nibbles = ("qs", "u1", size // 2)
    return {
        "int4": [_SCALE, ("raised", "u1"), nibbles],
        "int8": [_SCALE, ("qs", "i1", size)],
        "nvfp4": [_SCALE, ("sc", "u1", size // 16), nibbles],
        "fp8": [_SCALE, ("qs", "u1", size)],
    }[kind]


def _layout(dtype: DType) -> "np.dtype[np.void]":
    return np.dtype(_fields(dtype.name.partition("_")[0], dtype.block_size))


SCALED_LAYOUTS = {dtype.name: _layout(dtype) for dtype in SCALED_BLOCKS}
