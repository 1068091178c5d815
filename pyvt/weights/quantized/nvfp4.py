"""NVFP4 weights: 4-bit floats with an e4m3 scale for 16 columns and one f32 scale g.

``W[n, k] = e2m1(q) · (e4m3(weight_scale[n, k/16]) · g)``, two columns a byte, the first in the low
half:

1. ModelOpt: ``weight`` U8 ``[N, K/2]``, ``weight_scale``, ``weight_scale_2`` = g.
2. compressed-tensors: ``weight_packed`` U8 ``[N, K/2]``, ``weight_scale``, and
   ``weight_global_scale`` = 1 / g.

Only the weights are in 4 bits; scales of activations are not used.

Dims: N outputs, K inputs.
"""

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.quantized.blocks import blocks_of, half_split, nibbles_in_order, scaled_dtype
from pyvt.weights.quantized.format import Layout, Parts, Scheme

GROUP = 16


def modelopt_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format of a ModelOpt weight."""
    return _layout(parts, ".weight")


def read_modelopt(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return a ModelOpt weight."""
    scale = parts.array(".weight_scale_2").astype(np.float32).reshape(-1)
    return _read(parts, layout, ".weight", scale)


def compressed_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format of a compressed-tensors weight."""
    return _layout(parts, ".weight_packed")


def read_compressed(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return a compressed-tensors weight."""
    scale = parts.array(".weight_global_scale").astype(np.float32).reshape(-1)
    return _read(parts, layout, ".weight_packed", np.float32(1) / scale)


def _layout(parts: Parts, codes: str) -> Layout:
    num_outputs, num_bytes = parts.shape(codes)
    num_inputs = 2 * num_bytes
    return Layout(
        (num_outputs, num_inputs), scaled_dtype("nvfp4", num_inputs, num_inputs, parts.name)
    )


def _read(
    parts: Parts, layout: Layout, codes: str, scale: "np.ndarray[tuple[int], np.dtype[np.float32]]"
) -> QuantTensor:
    num_outputs, num_inputs = layout.shape
    scales = parts.array(".weight_scale").view(np.uint8)
    if scales.shape != (num_outputs, num_inputs // GROUP) or scale.size != 1:
        name = parts.names[".weight_scale"]
        path = parts.source.info(name).path
        raise CheckpointError(
            f"[weights] {name} in {str(path)!r}: expected scales "
            f"{(num_outputs, num_inputs // GROUP)} and one more, got {scales.shape} and "
            f"{scale.size}",
            path=path,
            tensor=name,
        )
    return blocks_of(
        layout.dtype,
        layout.shape,
        scale=np.broadcast_to(scale, (num_outputs, 1)),
        sc=scales,
        qs=half_split(nibbles_in_order(parts.array(codes)), GROUP // 2),
    )
