"""What a backend can do besides kernels of ops: a record that its ``register()`` leaves here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyvt.dispatch.table import current_backend
from pyvt.errors import ConfigError
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.stored import Stored


class Packer(Protocol):
    """Lays weights out for the kernels of a backend."""

    def __call__(self, parts: Sequence[Stored]) -> PackedTensor | None:
        """Return the packed weight, None for a dtype that the backend reads as it is stored.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One host backend: its name; its packer, recorder and setter of threads where it has them."""

    name: str
    prepack: Packer | None = None
    make_plan: Callable[[], Plan] | None = None
    set_num_threads: Callable[[int], None] | None = None


_BACKENDS: dict[str, Backend] = {}


def add_backend(backend: Backend) -> None:
    """Add the record of a backend; called once by its ``register()``."""
    if backend.name in _BACKENDS:
        raise ConfigError(f"[backend] name: {backend.name!r} is added twice")
    _BACKENDS[backend.name] = backend


def selected_backend() -> Backend:
    """Return the record of the selected host backend, an empty one for the reference."""
    name = current_backend()
    return _BACKENDS.get(name) or Backend(name=name)
