"""Native backends: each only registers kernels of declared ops in the dispatch table.

A backend is loaded by name, once a process. Loading tells in words why it cannot be had; nothing
here is needed for correctness.
"""

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.errors import ConfigError, did_you_mean

# Host backends, best first. Each module has `register() -> None`, which raises ImportError with the
# reason where the backend cannot be used.
BACKENDS = {"cpu": "pyvt.backends.cpu"}
# Backends with memory of their own, which `auto` never stands for. The last one plays a device on
# the CPU: whatever it computes or measures is simulated.
DEVICE_BACKENDS = {"cuda": "pyvt.backends.cuda", "cuda-emu": "pyvt.backends.cuda.emulated"}
SIMULATED = frozenset({"cuda-emu"})
_ALL = {**BACKENDS, **DEVICE_BACKENDS}


def build_note(name: str) -> str:
    """Return what the install wrote about a backend: how it was built, or why it was not."""
    from importlib.metadata import PackageNotFoundError, distribution  # 60 ms, seldom needed

    try:
        info = Path(str(distribution("pyvt").locate_file("pyvt/backends/build_info.json")))
        built = json.loads(info.read_text())[name]
    except (PackageNotFoundError, FileNotFoundError, KeyError):
        return "no record of a build: pyvt runs from its sources"
    if built["is_built"]:
        return f"built with {built['compiler']} for {built['processor']}: {built['levels']}"
    return f"not built at install: {built['reason']}"


@cache
def _attempt(name: str) -> str | None:
    """Register a backend; return None, or the reason why not."""
    try:
        register: Callable[[], None] = import_module(_ALL[name]).register
        register()
    except ImportError as error:
        return f"{error} ({build_note(name)})"
    return None


def why_not(name: str) -> str | None:
    """Return why a backend cannot be used, None where it can; loads it.

    Raises ConfigError with the known names for an unknown one.
    """
    if name == REFERENCE_BACKEND:
        return None
    if name not in _ALL:
        known = did_you_mean(name, [*_ALL, REFERENCE_BACKEND])
        raise ConfigError(f"[backend] name: {name!r} is unknown; {known}", field="backend")
    return _attempt(name)


def load(name: str) -> None:
    """Load a backend. Raises ConfigError with the reason where it cannot be had."""
    reason = why_not(name)
    if reason is not None:
        raise ConfigError(f"[backend] {name}: cannot be used: {reason}", field="backend")


def available() -> tuple[str, ...]:
    """Return the host backends that can be used here, best first; the reference is the last."""
    return (*(name for name in BACKENDS if why_not(name) is None), REFERENCE_BACKEND)
