"""The text of ``docs/reference/formats.md``, from the table of block formats."""

from pyvt.ops.block_formats import FORMATS
from pyvt.tensor.dtype import BLOCK_FORMATS

HEAD = """# Packed weight formats

Generated from `pyvt/tensor/dtype.py` and `pyvt/ops/block_formats.py`.
A weight stays in these blocks until an op reads it.

| format | GGUF type | elements a block | bytes a block | bits a weight | elements a scale |
|---|---|---|---|---|---|
"""


def formats_page() -> str:
    """Return the page: one row for each block format, in the order of GGUF type numbers."""
    lines = [
        f"| {dtype.name} | {dtype.gguf_id} | {dtype.block_size} | {dtype.block_bytes} "
        f"| {dtype.bits_per_element:g} | {FORMATS[dtype.name].group_size} |"
        for dtype in BLOCK_FORMATS
    ]
    return HEAD + "\n".join(lines) + "\n"
