"""The native CPU backend: kernels of the compiled module ``_native`` for host arrays."""

import atexit
from collections.abc import Sequence
from types import ModuleType

from pyvt.backends.supports import supports_op
from pyvt.dispatch.backend import Backend, add_backend
from pyvt.dispatch.table import HOST, Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.host_arena import HostArena
from pyvt.tensor.packed_tensor import TILE16, PackedTensor
from pyvt.tensor.stored import Stored, matrix_of, stored_dtype, stored_rows

NAME = "cpu"
PRIORITY = 10


def native() -> ModuleType:
    """Return the compiled module. Raises ImportError where it was not built."""
    try:
        from pyvt.backends.cpu import _native
    except ImportError as error:
        raise ImportError(
            f"the compiled module cannot be loaded: {error}; install anew with a C++ compiler"
        ) from error
    return _native


class _Packer:
    """Lays weights out in tiles, in memory of its own."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._arena = HostArena()

    def __call__(self, parts: Sequence[Stored]) -> PackedTensor | None:
        """Return the tiles of a weight, None for a dtype that no kernel reads in tiles."""
        if parts[0].ndim == 3:
            stack = [[matrix_of(part, i)] for part in parts for i in range(part.shape[0])]
            return self._pack(stack, parts[0].shape[1], is_stack=True)
        return self._pack([parts], sum(part.shape[0] for part in parts), is_stack=False)

    def reserve(self, num_bytes: int, num_taken: int) -> None:
        """Begin a block for tiles and take its first pages; see ``HostArena``."""
        self._arena.reserve(num_bytes, num_taken)

    def release_rest(self) -> None:
        """Give back memory that was taken ahead."""
        self._arena.release_rest()

    def _pack(
        self, matrices: Sequence[Sequence[Stored]], num_rows: int, *, is_stack: bool
    ) -> PackedTensor | None:
        """Return the tiles of matrices ``[num_rows, K]``, each given by runs of its rows."""
        dtype, num_columns = stored_dtype(matrices[0][0]), matrices[0][0].shape[1]
        number = self._module.DTYPES.get(dtype.name, (-1,))[0]
        num_bytes = self._module.packed_bytes(num_rows, number, num_columns)
        if num_bytes < 0:
            return None
        data = self._arena.take(len(matrices) * num_bytes)
        for i, runs in enumerate(matrices):
            tiles = data[i * num_bytes : (i + 1) * num_bytes]
            rows = [stored_rows(run) for run in runs]
            self._module.pack_tiles(tiles, rows, number, num_columns)
        shape = (len(matrices), num_rows, num_columns) if is_stack else (num_rows, num_columns)
        return PackedTensor(dtype, shape, TILE16, data)


def register() -> None:
    """Register the ops of the compiled module and the packer of weights.

    Raises ImportError where the module was not built.
    """
    module = native()
    for op, dtypes in module.OPS.items():
        candidate = Candidate(NAME, HOST, getattr(module, op), PRIORITY, supports_op(op, dtypes))
        register_kernel(op, candidate)
    packer = _Packer(module)
    add_backend(
        Backend(
            name=NAME,
            prepack=packer,
            reserve=packer.reserve,
            make_plan=module.Plan,
            set_num_threads=module.set_num_threads,
            multiplies_bf16=module.multiplies_bf16,
        )
    )
    atexit.register(module.shutdown_threads)
