"""The op table: which kernel serves an op on a device, for these dtypes.

An op is declared once, in ``pyvt/ops``; its NumPy reference is registered beside it as the kernel
of backend ``numpy``. A native backend registers more kernels. A call goes to the first candidate,
by (priority, name), that belongs to the selected host backend or to the tensor's own device and
supports the dtypes. The choice is cached by device, host backend and dtypes. The host backend is
the process's (``use_backend``) or that of a block of one thread (``computing_on``), as an engine's
steps are: engines in threads of one process do not meet. The reference serves host memory
only; NaN and infinities are results to it, so it runs without NumPy's warnings of them.

``PYVT_DISABLE_KERNELS`` leaves candidates out; under ``PYVT_STRICT=1`` a call that would reach the
reference is an error. Both are read when an op first meets its dtypes, and again after
``use_backend``.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from pyvt import envs
from pyvt.errors import ConfigError, UnsupportedError, did_you_mean

Kernel = Callable[..., None]
Supports = Callable[[tuple[Any, ...]], bool]
KernelT = TypeVar("KernelT", bound=Kernel)

REFERENCE_BACKEND = "numpy"
REFERENCE_PRIORITY = 0
HOST = "host"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel of an op: the backend that registered it, where it runs, and its rank.

    ``supports`` is asked once for each combination of dtypes: those of the kernel's arguments in
    order, None for one that is no tensor.
    """

    backend: str
    device_type: str
    kernel: Kernel
    priority: int
    supports: Supports | None = None


@dataclass(slots=True, eq=False)
class Op:
    """A declared op. Calling it dispatches: outputs first, then inputs, then scalars.

    ``num_outputs`` is the number of leading arguments that a kernel writes. ``composite`` names the
    ops that a fused op equals; a backend without the fused kernel runs the reference, which is that
    composite. An op ``is_of_load`` makes tables when a model is loaded, never in a step: its
    reference serves under ``PYVT_STRICT`` too.
    """

    name: str
    num_outputs: int = 1
    composite: tuple[str, ...] = ()
    is_of_load: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    num_reference_calls: int = 0
    _cache: dict[tuple[Any, ...], Candidate] = field(default_factory=dict)

    def reference(self, kernel: KernelT) -> KernelT:
        """Register the NumPy reference of this op; used as a decorator in the op's file."""
        self.register(Candidate(REFERENCE_BACKEND, HOST, kernel, REFERENCE_PRIORITY))
        return kernel

    def register(self, candidate: Candidate) -> None:
        """Add a kernel. A backend may register an op once."""
        if any(known.backend == candidate.backend for known in self.candidates):
            raise ConfigError(f"[{self.name}] kernel: {candidate.backend!r} is registered twice")
        self.candidates.append(candidate)
        self.candidates.sort(key=lambda known: (-known.priority, known.backend))
        self._cache.clear()

    def resolve(self, args: tuple[Any, ...]) -> Candidate:
        """Return the candidate for these arguments, outputs first. Raises UnsupportedError."""
        device_type = getattr(args[0], "device_type", HOST)
        dtypes = tuple([getattr(arg, "dtype", None) for arg in args])
        key = device_type, current_backend(), dtypes
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._search(*key)
        return found

    def _search(self, device_type: str, host_backend: str, dtypes: tuple[Any, ...]) -> Candidate:
        disabled = envs.PYVT_DISABLE_KERNELS.names()
        for candidate in self.candidates:
            if candidate.device_type != device_type:
                continue
            if device_type == HOST and candidate.backend not in (
                host_backend,
                REFERENCE_BACKEND,
            ):
                continue
            is_reference = candidate.backend == REFERENCE_BACKEND
            if not is_reference and {self.name, f"{self.name}:{candidate.backend}"} & disabled:
                continue
            if candidate.supports is not None and not candidate.supports(dtypes):
                continue
            if is_reference and envs.PYVT_STRICT.is_on() and not self.is_of_load:
                continue
            return candidate
        of = ", ".join("-" if dtype is None else str(dtype) for dtype in dtypes)
        have = ", ".join(f"{c.backend} on {c.device_type}" for c in self.candidates) or "none"
        strict = " (PYVT_STRICT=1 bars the reference)" if envs.PYVT_STRICT.is_on() else ""
        raise UnsupportedError(
            f"[{self.name}] kernel: none for ({of}) on {device_type} under backend "
            f"{host_backend!r}; registered: {have}{strict}"
        )

    def of_backend(self, backend: str) -> Candidate | None:
        """Return the kernel that a backend registered, None where it has none."""
        return next((known for known in self.candidates if known.backend == backend), None)

    @property
    def reference_kernel(self) -> Kernel:
        """The NumPy reference, for the reference of an op that is made of this one."""
        found = self.of_backend(REFERENCE_BACKEND)
        assert found is not None, f"{self.name}: every op has a reference"
        return found.kernel

    def run(self, candidate: Candidate, args: tuple[Any, ...]) -> None:
        """Run one kernel of this op; a reference call is counted."""
        if candidate.backend == REFERENCE_BACKEND:
            self.num_reference_calls += 1
            with np.errstate(all="ignore"):
                candidate.kernel(*args)
        else:
            candidate.kernel(*args)

    def __call__(self, *args: Any) -> None:
        candidate = self.resolve(args)
        tap = _of_thread.tap
        if tap is None:
            self.run(candidate, args)
        else:
            tap(self, candidate, args)


Tap = Callable[[Op, Candidate, tuple[Any, ...]], None]
# Returns a new array of a shape and dtype, content undefined.
Allocate = Callable[[tuple[int, ...], Any], Any]


@dataclass(slots=True)
class _Selection:
    """The host backend of this process, and the backends that have registered kernels."""

    host_backend: str = REFERENCE_BACKEND
    known: set[str] = field(default_factory=lambda: {REFERENCE_BACKEND})


class _OfThread(threading.local):
    """Of the calls of one thread: their host backend where it is another one than the process's,
    the tap, and where their outputs come from.
    """

    def __init__(self) -> None:
        self.host_backend: str | None = None
        self.tap: Tap | None = None
        self.allocate: Allocate = np.empty


_OPS: dict[str, Op] = {}
# Kernels of backends that were loaded before the ops: each waits for its declaration.
_WAITING: dict[str, list[Candidate]] = {}
_selection = _Selection()
_of_thread = _OfThread()


def declare(
    name: str,
    *,
    num_outputs: int = 1,
    composite: tuple[str, ...] = (),
    is_of_load: bool = False,
) -> Op:
    """Declare an op; called once, at import, by the file in ``pyvt/ops`` that owns it."""
    if name in _OPS:
        raise ConfigError(f"[{name}] op: declared twice")
    op = _OPS[name] = Op(name, num_outputs, composite, is_of_load)
    for candidate in _WAITING.pop(name, []):
        op.register(candidate)
    return op


def get_op(name: str) -> Op:
    """Return a declared op. Raises ConfigError with a near miss for an unknown name."""
    if name not in _OPS:
        raise ConfigError(f"[dispatch] op: {name!r} is unknown; {did_you_mean(name, _OPS)}")
    return _OPS[name]


def all_ops() -> Iterator[Op]:
    """Yield the declared ops in the order of their names."""
    yield from (_OPS[name] for name in sorted(_OPS))


def register(name: str, candidate: Candidate) -> None:
    """Add a native kernel; a backend's ``register()`` calls it, before the declaration or after."""
    if name in _OPS:
        _OPS[name].register(candidate)
    else:
        _WAITING.setdefault(name, []).append(candidate)
    _selection.known.add(candidate.backend)


def undeclared_kernels() -> tuple[str, ...]:
    """Return the names that a backend registered and no file of ``pyvt.ops`` declared."""
    return tuple(sorted(_WAITING))


def _check_loaded(name: str) -> None:
    if name not in _selection.known:
        known = did_you_mean(name, _selection.known)
        raise ConfigError(f"[backend] name: {name!r} is not loaded; {known}", field="backend")


def use_backend(name: str) -> None:
    """Select the backend of host arrays for this process. Raises ConfigError for one not loaded."""
    _check_loaded(name)
    _selection.host_backend = name
    for op in _OPS.values():
        op._cache.clear()


def current_backend() -> str:
    """Return the name of the selected host backend."""
    return _of_thread.host_backend or _selection.host_backend


@contextmanager
def computing_on(name: str) -> Iterator[None]:
    """Select the backend of host arrays for the calls of this thread until the block ends.

    Raises ConfigError for one that is not loaded.
    """
    _check_loaded(name)
    before, _of_thread.host_backend = _of_thread.host_backend, name
    try:
        yield
    finally:
        _of_thread.host_backend = before


def known_backends() -> tuple[str, ...]:
    """Return the names of the backends that have registered kernels, the reference among them."""
    return tuple(sorted(_selection.known))


def reference_call_counts() -> dict[str, int]:
    """Return the number of reference calls of each op that had any."""
    return {op.name: op.num_reference_calls for op in all_ops() if op.num_reference_calls}


def empty(shape: tuple[int, ...], dtype: Any, *, beside: Any = None) -> Any:
    """Return a new array for the output of an op; its content is undefined.

    It is on the device of ``beside``, on the host where that is a host array or None.
    """
    if beside is not None and hasattr(beside, "device_type"):
        return beside.empty(shape, dtype)
    return _of_thread.allocate(shape, dtype)


def place(array: Any, *, beside: Any) -> Any:
    """Return a host array on the device of ``beside``, a copy, or itself where that is the host."""
    return beside.upload(array) if hasattr(beside, "device_type") else array


def place_together(arrays: Sequence[Any], *, beside: Any) -> list[Any]:
    """Return host arrays on the device of ``beside``, by one copy, or themselves."""
    is_on_device = hasattr(beside, "device_type")
    return list(beside.upload_together(list(arrays)) if is_on_device else arrays)


def on_host(array: Any) -> Any:
    """Return a tensor of a device as a host array, a copy; a host array as itself."""
    return array.numpy() if hasattr(array, "device_type") else array


class Fetched(Protocol):
    """Arrays of a device that are on their way to the host."""

    def arrays(self) -> list[Any]:
        """Wait for them, and return host arrays."""
        ...


@dataclass(frozen=True, slots=True)
class _Here:
    """Host arrays, which need no way."""

    found: list[Any]

    def arrays(self) -> list[Any]:
        return self.found


def fetch(arrays: Sequence[Any]) -> Fetched:
    """Start to copy tensors of one device to the host; host arrays are there already."""
    if arrays and hasattr(arrays[0], "device_type"):
        fetched: Fetched = arrays[0].fetch(list(arrays))
        return fetched
    return _Here(list(arrays))


def chosen_backends() -> dict[str, tuple[str, ...]]:
    """Return the backends that calls of each op were given to since the last ``use_backend``."""
    chosen = {op.name: {c.backend for c in op._cache.values()} for op in all_ops()}
    return {name: tuple(sorted(served)) for name, served in chosen.items() if served}


@contextmanager
def allocating(allocate: Allocate) -> Iterator[None]:
    """Take the outputs that ops of this thread make from ``allocate`` until the block ends."""
    before, _of_thread.allocate = _of_thread.allocate, allocate
    try:
        yield
    finally:
        _of_thread.allocate = before


@contextmanager
def tapped(tap: Tap, *, allocate: Allocate = np.empty) -> Iterator[None]:
    """Hand every call of this thread to ``tap(op, candidate, args)`` until the block ends.

    Taps do not nest. The tap runs the kernel, with ``op.run(candidate, args)``. Outputs that ops
    make come from ``allocate``.
    """
    assert _of_thread.tap is None, "a tap is set already"
    _of_thread.tap = tap
    try:
        with allocating(allocate):
            yield
    finally:
        _of_thread.tap = None
