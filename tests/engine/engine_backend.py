"""The backend that tests of whole engines run on: the reference, or what PYVT_TEST_ENGINE names.

``python -m tests.native_builds emu`` runs them on the emulated device.
"""

import os
from typing import Any

import pytest

from pyvt import backends

NAME = os.environ.get("PYVT_TEST_ENGINE", "numpy")
IS_REFERENCE = NAME == "numpy"
# Blocks by number: engines of a test lie side by side, and none of them measures its largest steps.
ON_BACKEND: dict[str, Any] = {"backend": NAME} | ({} if IS_REFERENCE else {"num_blocks": 256})
# Where tests compare what was computed beside other rows or in another order: on native kernels no
# bit depends on that, on the reference in f64 no token; no device computes in f64.
EXACT: dict[str, Any] = ON_BACKEND | {"dtype": "f32"}
if IS_REFERENCE and backends.why_not("cpu") is None:
    EXACT = {"backend": "cpu", "dtype": "f32", "act": "none"}
elif IS_REFERENCE:
    EXACT = {"backend": "numpy", "dtype": "f64"}
# Backends of tests that hold for every one.
NAMES = ("numpy", "cpu") if IS_REFERENCE else (NAME,)


def needs(backend: str) -> str:
    """Return a backend; the test is skipped where it does not load."""
    reason = backends.why_not(backend)
    if reason is not None:
        pytest.skip(reason)
    return backend
