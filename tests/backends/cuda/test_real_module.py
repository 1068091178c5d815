"""The module that nvcc built: it imports anywhere, and says why no device can be used."""

import importlib.util
from pathlib import Path

import pytest

from pyvt import backends
from pyvt.errors import KernelError

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("pyvt.backends.cuda._native") is None,
        reason="the CUDA module is not built; make cuda builds it",
    )
]


def test_module_has_the_ops_of_its_table() -> None:
    from pyvt.backends.cuda import native

    module = native()

    assert "paged_attention" in module.OPS
    assert all(callable(getattr(module, op)) for op in module.OPS)
    assert not module.IS_SIMULATED


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="a driver is here")
def test_device_that_cannot_be_used_is_told_in_words() -> None:
    from pyvt.backends.cuda import native

    with pytest.raises(KernelError, match="no device can be used"):
        native().num_devices()

    assert "no device can be used" in str(backends.why_not("cuda"))
