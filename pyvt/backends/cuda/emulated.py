"""The CUDA backend on an emulator: the same kernels, run thread by thread on the CPU.

For tests; it is never installed. What it computes is labelled simulated, and its speed says nothing
about a device.
"""

from types import ModuleType

from pyvt.backends.cuda.device_backend import register_module

NAME = "cuda-emu"


def native() -> ModuleType:
    """Return the compiled module. Raises ImportError where it was not built."""
    try:
        from pyvt.backends.cuda import _native_emu
    except ImportError as error:
        raise ImportError(
            f"the emulated module cannot be loaded: {error}; make emu builds it"
        ) from error
    return _native_emu


def register() -> None:
    """Register the ops of the emulated module. Raises ImportError where it was not built."""
    module = native()
    module.open(0)
    register_module(NAME, module)
