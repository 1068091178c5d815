"""What the real and the emulated module share: registration, and weights that go to the device.

Dims: N rows, K elements of a row.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from pyvt.backends.supports import supports_op
from pyvt.dispatch.backend import Backend, Graph, TensorGroup, add_backend
from pyvt.dispatch.table import Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, joined

PRIORITY = 10


class _Graph:
    """One captured step; all of them take memory from the same pool."""

    def __init__(self, module: ModuleType, pool: Any) -> None:
        self._graph, self._pool = module.Graph(), pool

    def start(self) -> None:
        self._graph.start(self._pool)

    def stop(self) -> None:
        self._graph.stop()

    def run(self) -> None:
        self._graph.run()

    def abandon(self) -> None:
        self._graph.abandon()

    def __len__(self) -> int:
        return len(self._graph)


class CudaDevice:
    """The memory of an open device; its kernels read plain rows and blocks as they are stored."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._pool: Any = None

    def upload(self, array: Any) -> Any:
        """Return a copy of a host array on the device."""
        return self._module.upload(array)

    def upload_together(self, arrays: list[Any]) -> TensorGroup:
        """Return copies of host arrays in one buffer, which one copy fills."""
        group: TensorGroup = self._module.TensorGroup(arrays)
        return group

    def from_dlpack(self, array: Any) -> Any:
        """Return a tensor over the memory of another library's array on the device."""
        return self._module.from_dlpack(array)

    def place(self, weight: Any) -> Any:
        """Return a weight or an array on the device; what is there already stays itself."""
        if isinstance(weight, QuantTensor):
            columns = weight.columns
            return replace(
                weight,
                blocks=self.place(weight.blocks),
                columns=None if columns is None else self.place(columns),
            )
        return weight if hasattr(weight, "device_type") else self.upload(weight)

    def graph(self) -> Graph:
        """Return a new graph; the graphs of a device run one at a time and share their memory."""
        if self._pool is None:
            self._pool = self._module.Pool()
            # Opens cuBLASLt, which may not happen in the middle of a capture.
            self._module.why_no_cublas()
        return _Graph(self._module, self._pool)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new tensor of zeros."""
        return self._module.zeros(shape, dtype)

    def memory(self, *, is_trimmed: bool = True) -> tuple[int, int]:
        """Return the free and all bytes; trimmed, what is kept for later ops is given back."""
        if is_trimmed:
            self._module.trim()
        free, total = self._module.memory()
        return int(free), int(total)


class _Packer:
    """Copies weights to the device as they are stored."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __call__(self, parts: Sequence[Stored]) -> Any:
        """Return the weight ``[ΣN, K]`` on the device, plain or a ``QuantTensor``."""
        return self._device.place(joined(parts))

    def release_rest(self) -> None:
        """Give back memory that was taken ahead: none is."""


def register_module(name: str, module: ModuleType) -> None:
    """Register the ops of a module whose device is open."""
    for op, dtypes in module.OPS.items():
        candidate = Candidate(name, name, getattr(module, op), PRIORITY, supports_op(op, dtypes))
        register_kernel(op, candidate)
    device = CudaDevice(module)
    add_backend(Backend(name=name, prepack=_Packer(device), device=device))
