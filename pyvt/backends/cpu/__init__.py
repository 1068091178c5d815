"""The native CPU backend: kernels of the compiled module ``_native`` for host arrays."""

import atexit
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pyvt.dispatch.backend import Backend, add_backend
from pyvt.dispatch.table import HOST, Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.dtype import DTYPES, F32, DType
from pyvt.tensor.host_arena import HostArena
from pyvt.tensor.packed_tensor import TILE16, PackedTensor
from pyvt.tensor.stored import Stored, matrix_of, stored_dtype, stored_rows

Predicate = Callable[[tuple[Any, ...]], bool]

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


def _supports(names: str) -> Predicate:
    """Return a predicate: every float dtype and block format of a call is one of ``names``.

    The dtype of a packed weight counts as that of an array.
    """
    listed = [DTYPES[name] for name in names.split()]
    allowed = {*listed, *(dtype.numpy for dtype in listed if dtype.numpy is not None)}

    def supports(dtypes: tuple[Any, ...]) -> bool:
        return all(dtype in allowed for dtype in dtypes if _is_counted(dtype))

    return supports


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


def _is_counted(dtype: Any) -> bool:
    return isinstance(dtype, DType) or getattr(dtype, "kind", "") in ("f", "V")


def _writes_f32(dtypes: tuple[Any, ...]) -> bool:
    """Whether the output is f32; the parameters of such a call may be f64."""
    return bool(dtypes[0] == F32.numpy)


# What more the dtypes of a call must be, by op.
_RULES: dict[str, Predicate] = dict.fromkeys(
    (
        "apply_logit_bias",
        "apply_min_p",
        "apply_penalties",
        "apply_temperature",
        "apply_top_k_top_p",
    ),
    _writes_f32,
)


def _supports_op(op: str, names: str) -> Predicate:
    supports, rule = _supports(names), _RULES.get(op)
    if rule is None:
        return supports
    return lambda dtypes: supports(dtypes) and rule(dtypes)


def register() -> None:
    """Register the ops of the compiled module and the packer of weights.

    Raises ImportError where the module was not built.
    """
    module = native()
    for op, dtypes in module.OPS.items():
        candidate = Candidate(NAME, HOST, getattr(module, op), PRIORITY, _supports_op(op, dtypes))
        register_kernel(op, candidate)
    add_backend(
        Backend(
            name=NAME,
            prepack=_Packer(module),
            make_plan=module.Plan,
            set_num_threads=module.set_num_threads,
        )
    )
    atexit.register(module.shutdown_threads)
