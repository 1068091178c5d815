"""The device backend that these tests run on: the emulator, or PYVT_TEST_DEVICE=cuda."""

import os
from importlib import import_module
from types import ModuleType

import pytest

from pyvt import backends

NAME = os.environ.get("PYVT_TEST_DEVICE", "cuda-emu")
IS_THERE = backends.why_not(NAME) is None
NEEDS_DEVICE = pytest.mark.emulated if NAME == "cuda-emu" else pytest.mark.cuda


def native() -> ModuleType:
    """Return the compiled module of that backend, whose device is open."""
    module: ModuleType = import_module(backends.DEVICE_BACKENDS[NAME]).native()
    return module
