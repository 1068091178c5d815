"""The element types that a model can be written in, and how rows of f32 become each of them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyvt.convert.k_blocks import encode_q4_k, encode_q5_k, encode_q6_k
from pyvt.convert.small_blocks import encode_q4_0, encode_q5_0, encode_q5_1, encode_q8_0
from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import DType

Array = np.ndarray[Any, Any]

ENCODERS: Mapping[str, Callable[[Array], Array]] = {
    "q8_0": encode_q8_0,
    "q4_0": encode_q4_0,
    "q5_0": encode_q5_0,
    "q5_1": encode_q5_1,
    "q4_k": encode_q4_k,
    "q5_k": encode_q5_k,
    "q6_k": encode_q6_k,
}


def encode_rows(rows: Array, dtype: DType, name: str = "weight") -> Array:
    """Return rows as a file has them, uint8 ``[R, row_bytes]``.

    Args:
        rows: ``[R, K]`` of a plain float dtype, K a multiple of the block size; it is kept.
        dtype: a plain float dtype or a format of ``ENCODERS``.
        name: of the tensor, for errors.

    Raises:
        CheckpointError: a value for blocks is NaN or infinite.
    """
    if dtype.numpy is not None:
        with np.errstate(over="ignore"):
            plain = np.ascontiguousarray(rows.astype(dtype.numpy, copy=False))
        return plain.view(np.uint8).reshape(len(rows), -1)
    wide = rows.astype(np.float32)
    if not np.isfinite(wide).all():
        raise CheckpointError(
            f"[quantize] {name}: expected finite values, got NaN or infinity; blocks cannot hold "
            "them: check the checkpoint with pyvt inspect --verify",
            tensor=name,
        )
    blocks = ENCODERS[dtype.name](wide.reshape(-1, dtype.block_size))
    return blocks.reshape(len(rows), -1)
