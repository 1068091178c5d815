"""Layouts ``tile16`` of the block formats."""

from pyvt.ops.tile_layout import TileLayout

INT8_LAYOUTS: dict[str, TileLayout] = {}
