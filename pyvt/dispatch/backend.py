"""What a backend can do besides kernels of ops: a record that its ``register()`` leaves here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pyvt.dispatch.table import current_backend
from pyvt.errors import ConfigError, UnsupportedError
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.stored import Stored


class Packer(Protocol):
    """Lays weights out for the kernels of a backend."""

    def __call__(self, parts: Sequence[Stored]) -> PackedTensor | Stored | None:
        """Return the weight as the backend's kernels read it, None for one that stays as stored.

        ``parts`` are of one dtype and lie one below the other, ``[N, K]`` each, or one behind the
        other in a stack, ``[E, N, K]`` each.
        """
        ...

    def release_rest(self) -> None:
        """Give back memory that was taken ahead; called when a model is loaded."""
        ...


class Plan(Protocol):
    """The op calls of a step, recorded once and run again with what their arrays then hold."""

    def start(self) -> None:
        """Append the calls of this thread from now on."""
        ...

    def stop(self) -> None:
        """Append no more."""
        ...

    def run(self) -> None:
        """Run the calls."""
        ...


class Graph(Plan, Protocol):
    """A plan of a device: its calls run when the recording stops, not before."""

    def abandon(self) -> None:
        """End the recording and forget it; nothing of it has run."""
        ...


class TensorGroup(Protocol):
    """Tensors of a device that one copy fills."""

    @property
    def tensors(self) -> list[Any]:
        """The tensors, in the order of the arrays that they were made from."""
        ...

    def fill(self, arrays: list[Any]) -> None:
        """Fill the first tensors from host arrays of their sizes; the rest stays."""
        ...


class Device(Protocol):
    """Memory of a backend that is not the host's, and how a step of it is captured."""

    def upload(self, array: Any) -> Any:
        """Return a copy of a host array there; the array may be changed at once."""
        ...

    def upload_together(self, arrays: list[Any]) -> TensorGroup:
        """Return copies of host arrays there, by one copy."""
        ...

    def from_dlpack(self, array: Any) -> Any:
        """Return a tensor over the memory of another library's array there."""
        ...

    def place(self, weight: Any) -> Any:
        """Return a plain or packed weight there; what is there already stays itself."""
        ...

    def graph(self) -> Graph:
        """Return a new graph."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new tensor of zeros."""
        ...

    def memory(self, *, is_trimmed: bool = True) -> tuple[int, int]:
        """Return the free and all bytes; trimmed, what is kept for later ops is given back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One backend: its name; its packer, recorder, setter of threads and device where it has them.

    A backend with a ``device`` computes on tensors that are there; others on host arrays.
    ``reserve`` begins a block of memory for the bytes of packed weights, ahead of ``prepack``, and
    takes its first bytes from the system.
    ``multiplies_bf16`` tells whether products of bf16 are faster than those of f32.
    """

    name: str
    prepack: Packer | None = None
    reserve: Callable[[int, int], None] | None = None
    make_plan: Callable[[], Plan] | None = None
    set_num_threads: Callable[[int], None] | None = None
    device: Device | None = None
    multiplies_bf16: Callable[[], bool] | None = None


_BACKENDS: dict[str, Backend] = {}


def add_backend(backend: Backend) -> None:
    """Add the record of a backend; called once by its ``register()``."""
    if backend.name in _BACKENDS:
        raise ConfigError(f"[backend] name: {backend.name!r} is added twice")
    _BACKENDS[backend.name] = backend


def selected_backend() -> Backend:
    """Return the record of the selected host backend, an empty one for the reference."""
    return backend_named(current_backend())


def backend_named(name: str) -> Backend:
    """Return the record of a loaded backend, an empty one for the reference."""
    return _BACKENDS.get(name) or Backend(name=name)


def from_dlpack(array: Any) -> Any:
    """Return an array of another library as one that ops of the selected backend take.

    Both are one memory, which lives as long as either of them; an op that writes into it changes
    the other library's array. The way back is that library's own ``from_dlpack``. Arrays of the
    host that their library does not let be written can only be read.

    Args:
        array: has ``__dlpack__`` (torch, CuPy, JAX, …) and lies where the selected backend
            computes.

    Raises:
        UnsupportedError: it lies elsewhere, has a dtype that is not taken, or is no array.
    """
    if not hasattr(array, "__dlpack__"):
        raise UnsupportedError(
            f"[ops] from_dlpack: expected an array that has __dlpack__, got "
            f"{type(array).__name__}; numpy.asarray makes one of numbers"
        )
    device = selected_backend().device
    if device is not None:
        return device.from_dlpack(array)
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"[ops] from_dlpack: expected an array of the host in a dtype that NumPy has, got "
            f"{type(array).__name__}: {error}; move it there, or select the backend of its device"
        ) from error
