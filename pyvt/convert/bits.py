"""Codes of a few bits into bytes: the inverse of what ``pyvt.ops.block_formats`` takes apart."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pack_fields(codes: Array, bits: int, width: int) -> Array:
    """Put codes ``[B, n]`` of ``bits`` into bytes: ``width`` of them hold runs of ``width`` codes.

    The first run of ``width`` codes takes the low bits of its bytes, the next one the bits above.

    Returns:
        uint8 ``[B, n · bits / 8]``.
    """
    per_byte = 8 // bits
    runs = codes.reshape(len(codes), -1, per_byte, width)
    packed = runs[:, :, 0].astype(np.uint8)
    for i in range(1, per_byte):
        packed |= runs[:, :, i] << np.uint8(i * bits)
    return packed.reshape(len(codes), -1)


def pack_six_bit_pairs(scales: Array, mins: Array) -> Array:
    """Put 8 scales and 8 mins of 6 bits, ``[B, 8]`` each, into the 12 bytes of a superblock."""
    first = (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6)
    second = (mins[:, :4] & 63) | (mins[:, 4:] >> 4 << 6)
    low = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4
    return np.concatenate((first, second, low), axis=1).astype(np.uint8)
