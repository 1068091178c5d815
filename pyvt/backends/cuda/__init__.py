"""The CUDA backend: kernels of the compiled module ``_native`` for tensors of a device."""

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pyvt.backends.cuda.device_backend import register_module
from pyvt.errors import KernelError

NAME = "cuda"


def native() -> ModuleType:
    """Return the compiled module. Raises ImportError where it was not built."""
    try:
        from pyvt.backends.cuda import _native
    except ImportError as error:
        raise ImportError(
            f"the compiled module cannot be loaded: {error}; install anew with PYVT_CUDA=on"
        ) from error
    return _native


def cublas_path() -> str:
    """Return where the package of extra ``cuda`` has cuBLASLt, empty where it is not installed."""
    spec = find_spec("nvidia")
    places = () if spec is None else spec.submodule_search_locations or ()
    found = (Path(place) / "cu13" / "lib" / "libcublasLt.so.13" for place in places)
    return next((str(path) for path in found if path.exists()), "")


def register() -> None:
    """Open the first device and register the ops of the compiled module.

    Raises ImportError where the module was not built, or no device can be used.
    """
    module = native()
    try:
        module.num_devices()
        module.set_cublas_path(cublas_path())
        module.open(0)
    except KernelError as error:
        raise ImportError(str(error)) from error
    register_module(NAME, module)
