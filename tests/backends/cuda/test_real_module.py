"""The module that nvcc built: it imports anywhere, and says why no device can be used."""

import importlib.util
import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("ldd") is None, reason="ldd is not here")
def test_module_needs_no_library_of_cuda() -> None:
    """The runtime is in it and cuBLASLt is opened when it is needed, so no version can be wrong."""
    from pyvt.backends.cuda import native

    path = native().__file__
    found = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout

    names = {line.split()[0] for line in found.splitlines()}
    assert any(name.startswith("libstdc++") for name in names)
    assert not [name for name in names if "cu" in name.lower()]
    assert "not found" not in found
