"""OpCase: one call of a public op, written once.

It is the test on every backend, the golden from an oracle, the benchmark and a row of the docs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyvt.dispatch.backend import Device
from pyvt.ops.packed_layouts import unpack_tiles
from pyvt.tensor.dtype import DTYPES, FLOATS, dtype_of
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored

Inputs = dict[str, Any]
MakeInputs = Callable[[np.random.Generator, "np.dtype[Any]"], Inputs]

ORACLE = "oracle"
SELF = "self"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCase:
    """One call of an op.

    Attributes:
        op: name of the public op in ``pyvt.ops``.
        case_id: short name, unique for the op, fit for a file name.
        make: makes the keyword arguments of the call from a generator and the float dtype.
        dtypes: names of the float dtypes that the case runs in.
        op_class: row of ``testing/tolerance.py``.
        mutates: names of arguments that the op overwrites; they are compared as outputs.
        origin: ``oracle`` where the golden comes from code that pyvt did not write; ``self`` where
            no public code exists and the golden is an f64 composite of the published formula.
        has_golden: False for a case too large to store; at least one case of an op has a golden.
        takes_out: whether the op returns one array and takes ``out=``.
    """

    op: str
    case_id: str
    make: MakeInputs
    dtypes: tuple[str, ...] = ("f32", "bf16", "f16", "f64")
    op_class: str = "elementwise"
    mutates: tuple[str, ...] = ()
    origin: str = ORACLE
    has_golden: bool = True
    takes_out: bool = True

    @property
    def name(self) -> str:
        """``op-case_id``, for test ids and file names."""
        return f"{self.op}-{self.case_id}"

    def inputs(self, dtype: str) -> Inputs:
        """Return the call's arguments in that float dtype; the same on every call."""
        rng = np.random.default_rng(np.frombuffer(self.name.encode(), np.uint8))
        numpy_dtype = DTYPES[dtype].numpy
        assert numpy_dtype is not None, "an op case runs in a plain dtype"
        return self.make(rng, numpy_dtype)


def run_case(case: OpCase, inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
    """Call the op on copies of the inputs and return every output by name.

    A returned array is ``out``, a returned tuple ``out0``, ``out1``, …; a mutated argument keeps
    its name.
    """
    return call_case(
        case, {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    )


def run_case_on(device: Device, case: OpCase, inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
    """Call the op on copies of the inputs on a device; outputs are named as in ``run_case``."""
    given = {k: _put(device, v) for k, v in inputs.items()}
    outputs: dict[str, Any] = call_case(case, given)
    return {
        name: value.numpy() if hasattr(value, "device_type") else value
        for name, value in outputs.items()
    }


def _put(device: Device, value: Any) -> Any:
    if isinstance(value, PackedTensor):
        value = _unpacked(value)
    if isinstance(value, np.ndarray):
        return device.upload(value)
    if isinstance(value, QuantTensor):
        columns = None if value.columns is None else device.upload(value.columns)
        return replace(value, blocks=device.upload(value.blocks), columns=columns)
    return value


def _unpacked(packed: PackedTensor) -> Stored:
    """Return a packed stack as it is stored, which is how devices have it."""
    matrices = [packed.matrix(i) for i in range(packed.shape[0])]
    parts = [unpack_tiles(matrix, 0, matrix.num_tiles) for matrix in matrices]
    if packed.dtype.numpy is None:
        blocks = np.stack([part.blocks for part in parts if isinstance(part, QuantTensor)])
        return QuantTensor(packed.dtype, packed.shape, blocks, packed.columns)
    return np.stack([part for part in parts if not isinstance(part, QuantTensor)])


def call_case(case: OpCase, inputs: Inputs) -> dict[str, np.ndarray[Any, Any]]:
    """Call the op on the inputs themselves, views and all; outputs are named as in ``run_case``."""
    from pyvt import ops

    result = getattr(ops, case.op)(**inputs)
    outputs: dict[str, np.ndarray[Any, Any]] = {}
    if isinstance(result, tuple):
        outputs |= {f"out{i}": value for i, value in enumerate(result)}
    elif result is not None and not any(result is inputs[name] for name in case.mutates):
        outputs["out"] = result
    return outputs | {name: inputs[name] for name in case.mutates}


def widened(inputs: Inputs) -> Inputs:
    """Return the inputs with every plain float array in f64; what it holds stays the same."""
    return {
        k: v.astype(np.float64) if isinstance(v, np.ndarray) and dtype_of(v) in FLOATS else v
        for k, v in inputs.items()
    }


def normal(
    rng: np.random.Generator, dtype: "np.dtype[Any]", *shape: int, scale: float = 1.0
) -> np.ndarray[Any, Any]:
    """Return normal values rounded to ``dtype``."""
    return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def rows(cases: Mapping[str, MakeInputs], op: str, **common: Any) -> tuple[OpCase, ...]:
    """Return one OpCase for each row of a table ``case_id: make`` with common settings."""
    return tuple(OpCase(op=op, case_id=k, make=make, **common) for k, make in cases.items())
