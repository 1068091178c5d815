"""What the real and the emulated module share: registration, and weights that go to the device.

Dims: N rows, K elements of a row.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from pyvt.backends.supports import supports_op
from pyvt.dispatch.backend import Backend, Device, add_backend
from pyvt.dispatch.table import Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, joined

PRIORITY = 10


class DevicePacker:
    """Copies weights to the device as they are stored: its kernels read plain rows and blocks."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __call__(self, parts: Sequence[Stored]) -> Any:
        """Return the weight ``[ΣN, K]`` on the device, plain or a ``QuantTensor``."""
        return put(self._module, joined(parts))

    def release_rest(self) -> None:
        """Give back memory that was taken ahead: none is."""


def put(module: ModuleType, tensor: Any) -> Any:
    """Return a weight or an array on the device; what is there already stays itself."""
    if isinstance(tensor, QuantTensor):
        columns = tensor.columns
        return replace(
            tensor,
            blocks=put(module, tensor.blocks),
            columns=None if columns is None else put(module, columns),
        )
    return tensor if hasattr(tensor, "device_type") else module.upload(tensor)


def register_module(name: str, module: ModuleType) -> None:
    """Register the ops of a module whose device is open."""
    for op, dtypes in module.OPS.items():
        candidate = Candidate(name, name, getattr(module, op), PRIORITY, supports_op(op, dtypes))
        register_kernel(op, candidate)
    add_backend(Backend(name=name, prepack=DevicePacker(module), device=cast(Device, module)))
