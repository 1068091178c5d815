"""Random packed weights for tests, cases and benchmarks: every code occurs, scales are ordinary."""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.ops.block_formats import FORMATS
from pyvt.tensor.dtype import SCALED_BLOCKS, DType
from pyvt.tensor.quant_tensor import QuantTensor

Array = np.ndarray[Any, Any]


def random_weight(
    rng: np.random.Generator, dtype: DType, *shape: int, magnitude: float = 0.05
) -> QuantTensor:
    """Return random blocks whose values are about ``magnitude`` in size.

    Every byte is random except the scales of a block, which are set so that values are neither huge
    nor NaN.
    """
    num_bytes = dtype.row_bytes(shape[-1])
    blocks = rng.integers(0, 256, (*shape[:-1], num_bytes), np.uint8)
    fields = blocks.reshape(-1, dtype.block_bytes).view(FORMATS[dtype.name].layout)[:, 0]
    _set_scales(rng, dtype, fields, magnitude)
    return QuantTensor(dtype, shape, blocks)


# The product of scale step and code that a random block has about half of the time.
_TYPICAL = {
    **{"q4_0": 4, "q4_1": 8, "q5_0": 8, "q5_1": 16, "q8_0": 64, "iq4_nl": 60},
    **{"q2_k": 12, "q3_k": 32, "q4_k": 240, "q5_k": 480, "q6_k": 1000, "iq4_xs": 900},
    **{"iq2_xxs": 45, "iq2_xs": 45, "iq2_s": 45, "iq3_xxs": 120, "iq3_s": 120},
}


def _set_scales(rng: np.random.Generator, dtype: DType, fields: Array, magnitude: float) -> None:
    if dtype.name == "mxfp4":
        middle = 128 + int(np.floor(np.log2(magnitude / 4)))
        fields["e"] = rng.integers(middle - 2, middle + 2, len(fields))
        return
    if dtype.name == "nvfp4":
        middle = 8 * (8 + int(np.floor(np.log2(magnitude / 4))))
        fields["sc"] = rng.integers(max(1, middle - 16), max(9, middle + 16), fields["sc"].shape)
        return
    if dtype in SCALED_BLOCKS:
        _set_whole_scales(rng, dtype, fields, magnitude)
        return
    step = magnitude / _TYPICAL[dtype.name]
    fields["d"] = rng.uniform(0.5, 1.5, len(fields)) * step
    if "dmin" in fields.dtype.names:
        fields["dmin"] = rng.uniform(0.5, 1.5, len(fields)) * step * 4
    if "m" in fields.dtype.names:
        fields["m"] = rng.uniform(-1.5, 0.5, len(fields)) * magnitude


def _set_whole_scales(
    rng: np.random.Generator, dtype: DType, fields: Array, magnitude: float
) -> None:
    """Set the f32 scale of blocks that have one, zeros of 0 to 16, and e4m3 numbers below NaN."""
    typical = {"int4": 4.0, "int8": 64.0, "nvfp4": 2.0, "fp8": 130.0}
    step = magnitude / typical[dtype.name.partition("_")[0]]
    fields["scale"] = rng.uniform(0.5, 1.5, len(fields)) * step
    if "raised" in fields.dtype.names:
        fields["raised"] = rng.integers(0, 17, len(fields))
    if "sc" in fields.dtype.names:
        fields["sc"] = rng.integers(0x30, 0x40, fields["sc"].shape)
    if dtype.name.startswith("fp8"):
        _set_fp8_codes(rng, fields["qs"], typical["fp8"])


def _set_fp8_codes(rng: np.random.Generator, codes: Array, typical: float) -> None:
    """Set e4m3 codes of a normal distribution, as weights have, and some of all but NaN."""
    values = np.clip(rng.standard_normal(codes.shape, np.float32) * typical, -448, 448)
    codes[:] = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    some = codes[:2]
    some[:] = rng.integers(0, 256, some.shape)
    some[(some & 127) == 127] = 0x38
