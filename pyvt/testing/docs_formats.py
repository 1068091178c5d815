"""The text of ``docs/reference/formats.md``, from the table of block formats."""

from pyvt.ops.block_formats import FORMATS
from pyvt.tensor.dtype import BLOCK_FORMATS, SCALED_BLOCKS, DType

HEAD = """# Packed weight formats

Generated from `pyvt/tensor/dtype.py` and `pyvt/ops/block_formats.py`.
A weight stays in these blocks until an op reads it. Those without a GGUF type are what FP8, GPTQ,
AWQ, compressed-tensors and NVFP4 checkpoints are laid out as at load, every value as their formula
gives it; `fp8` has no integer codes, so that its products are of f32 whatever `act` is.

| format | GGUF type | elements a block | bytes a block | bits a weight | elements a scale |
|---|---|---|---|---|---|
"""


def formats_page() -> str:
    """Return the page: formats in the order of GGUF type numbers, then those without one."""
    return HEAD + "\n".join(map(_row, BLOCK_FORMATS)) + "\n"


def _row(dtype: DType) -> str:
    number = "–" if dtype.gguf_id is None else dtype.gguf_id
    group_size = FORMATS[dtype.name].group_size
    # One scale stands for several groups of a panel.
    is_whole = dtype in SCALED_BLOCKS and group_size == 32
    cells = (
        *(dtype.name, number, dtype.block_size, dtype.block_bytes),
        *(f"{dtype.bits_per_element:g}", dtype.block_size if is_whole else group_size),
    )
    return f"| {' | '.join(map(str, cells))} |"
