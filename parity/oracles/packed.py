"""Oracles of packed weights: the bytes are put back in the order of a file, then as the others."""

from parity.oracles.elementwise import ORACLES as ELEMENTWISE
from parity.oracles.embedding import ORACLES as EMBEDDING
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


def _packed_embedding(a: Arrays) -> Arrays:
    packed = a["weight"]
    weight = unpack_tiles(packed, 0, packed.num_tiles)
    if not isinstance(weight, QuantTensor):
        return EMBEDDING["embedding"].run(a | {"weight": weight})
    out = QUANT["quant_embedding"].run(a | {"weight": weight})["out"]
    return ELEMENTWISE["cast"].run({"x": out, "dtype": a["dtype"]})


ORACLES = {
    "packed_linear": Oracle(
        "torch.nn.functional.linear of the unpacked weight, decoded by gguf.quants.dequantize",
        _packed_linear,
    ),
    "packed_embedding": Oracle(
        "torch.nn.functional.embedding of the unpacked weight, or gguf.quants.dequantize of its "
        "rows",
        _packed_embedding,
    ),
}
