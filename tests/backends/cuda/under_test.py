"""The device backend that these tests run on: the emulator, or PYVT_TEST_DEVICE=cuda."""

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from pyvt import backends

NAME = os.environ.get("PYVT_TEST_DEVICE", "cuda-emu")
IS_THERE = backends.why_not(NAME) is None
NEEDS_DEVICE = pytest.mark.emulated if NAME == "cuda-emu" else pytest.mark.cuda


def native() -> ModuleType:
    """Return the compiled module of that backend, whose device is open."""
    module: ModuleType = import_module(backends.DEVICE_BACKENDS[NAME]).native()
    return module


def has_used_tensor_cores(op: str, run: Callable[[], Any]) -> tuple[Any, bool | None]:
    """Return what ``run`` gives, and whether warps used tensor cores for that op.

    None on a card, which does not count.
    """
    module = native()
    if not module.IS_SIMULATED:
        return run(), None
    before = module.tensor_core_uses().get(op, 0)
    found = run()
    module.synchronize()
    return found, module.tensor_core_uses().get(op, 0) > before
