"""Oracles of packed weights: the bytes are put back in the order of a file, then as the others."""

from parity.oracles.linear import ORACLES as LINEAR
from parity.oracles.oracle import Arrays, Oracle
from parity.oracles.quant_gguf import ORACLES as QUANT
from pyvt.ops.packed_layouts import unpack_tiles
from pyvt.tensor.quant_tensor import QuantTensor


def _packed_linear(a: Arrays) -> Arrays:
    packed = a["weight"]
    weight = unpack_tiles(packed, 0, packed.num_tiles)
    oracle = QUANT["quant_linear"] if isinstance(weight, QuantTensor) else LINEAR["linear"]
    return oracle.run(a | {"weight": weight})


ORACLES = {
    "packed_linear": Oracle(
        "torch.nn.functional.linear of the unpacked weight, decoded by gguf.quants.dequantize",
        _packed_linear,
    )
}
