"""Checkpoint quantization: what a stored weight becomes, and the op that eats it."""

from pyvt.quant.base import LinearMethod, WeightSettings
from pyvt.quant.gguf import GGUFMethod
from pyvt.quant.packed import PackedMethod
from pyvt.quant.unquantized import UnquantizedMethod
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.param import Weight

QUANT_METHODS: dict[str, type[LinearMethod]] = {
    "unquantized": UnquantizedMethod,
    "gguf": GGUFMethod,
    "packed": PackedMethod,
}


def linear_method(weight: Weight, settings: WeightSettings) -> LinearMethod:
    """Return the method that multiplies by a loaded weight."""
    if isinstance(weight, PackedTensor):
        name = "packed"
    else:
        name = "gguf" if isinstance(weight, QuantTensor) else "unquantized"
    return QUANT_METHODS[name](weight, settings)


__all__ = ["QUANT_METHODS", "LinearMethod", "WeightSettings", "linear_method"]
