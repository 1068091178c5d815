"""TileLayout: one way to lay 16 rows of a weight side by side for a kernel; it only moves bytes.

Dims: B tiles.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyvt.ops.numerics import Array


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The layout of one dtype.

    Attributes:
        tile_bytes: bytes of a tile, of the bytes of a row in the file.
        pack: rows uint8 ``[B, 16, row_bytes]`` to tiles uint8 ``[B, tile_bytes]``.
        unpack: tiles and ``row_bytes`` to rows; the inverse of ``pack``.
    """

    tile_bytes: Callable[[int], int]
    pack: Callable[[Array], Array]
    unpack: Callable[[Array, int], Array]
