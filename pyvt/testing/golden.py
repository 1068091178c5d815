"""Goldens: what somebody else's code gave for the inputs of a case.

Format of an op's folder, ``goldens/ops/<op>/``:

1. ``manifest.json``: ``op``; ``oracle`` (source, callable, versions); ``cases``: case_id →
   ``{"origin": "oracle" | "self", "dtypes": {dtype: {"scalars": {name: value},
   "inputs": {name: spec}, "outputs": {name: spec}}}}``.
2. A *spec* is ``{"dtype": name, "shape": [...]}``; the dtype of a quantised weight is a block
   format. A weight laid out for kernels has also its ``"layout"``.
3. ``<case_id>.npz``: one array a spec, named ``<dtype>.in.<name>`` or ``<dtype>.out.<name>``.
   Element types that NumPy's file format does not know are stored as unsigned bit patterns; blocks
   and tiles of a weight as uint8.
4. Outputs hold the oracle's values before they were rounded to the case's dtype: f64, or f32 for
   the half dtypes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import dtype_named, dtype_of
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor

Array = np.ndarray[Any, Any]
MAX_CASE_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One case in one dtype: the call's arguments and the oracle's outputs."""

    op: str
    case_id: str
    dtype: str
    origin: str
    oracle: str
    inputs: dict[str, Any]
    outputs: dict[str, Array]

    @property
    def name(self) -> str:
        """``op-case_id-dtype``, for test ids."""
        return f"{self.op}-{self.case_id}-{self.dtype}"


def _spec(value: Any) -> dict[str, Any]:
    is_packed = isinstance(value, PackedTensor | QuantTensor)
    name = value.dtype.name if is_packed else dtype_of(value).name
    layout = {"layout": value.layout} if isinstance(value, PackedTensor) else {}
    return {"dtype": name, "shape": list(value.shape)} | layout


def _to_file(value: Any) -> Array:
    if isinstance(value, QuantTensor):
        return value.blocks
    if isinstance(value, PackedTensor):
        return value.data
    if value.dtype.kind == "V" or value.dtype.type.__module__ != "numpy":
        return np.asarray(value).view(f"u{value.dtype.itemsize}")
    return np.asarray(value)


def _from_file(array: Array, spec: dict[str, Any]) -> Any:
    dtype = dtype_named(spec["dtype"])
    if "layout" in spec:
        return PackedTensor(dtype, tuple(spec["shape"]), spec["layout"], array)
    if dtype.numpy is None:
        return QuantTensor(dtype, tuple(spec["shape"]), array)
    return array.view(dtype.numpy) if array.dtype != dtype.numpy else array


def write_op_goldens(folder: Path, op: str, oracle: dict[str, str], goldens: list[Golden]) -> None:
    """Write all goldens of an op, replacing the folder's content."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npz"):
        old.unlink()
    cases: dict[str, Any] = {}
    arrays: dict[str, dict[str, Array]] = {}
    for golden in goldens:
        scalars = {k: v for k, v in golden.inputs.items() if not hasattr(v, "dtype")}
        tensors = {k: v for k, v in golden.inputs.items() if hasattr(v, "dtype")}
        case = cases.setdefault(golden.case_id, {"origin": golden.origin, "dtypes": {}})
        case["dtypes"][golden.dtype] = {
            "scalars": scalars,
            "inputs": {k: _spec(v) for k, v in tensors.items()},
            "outputs": {k: _spec(v) for k, v in golden.outputs.items()},
        }
        stored = arrays.setdefault(golden.case_id, {})
        stored |= {f"{golden.dtype}.in.{k}": _to_file(v) for k, v in tensors.items()}
        stored |= {f"{golden.dtype}.out.{k}": _to_file(v) for k, v in golden.outputs.items()}
    for case_id, stored in arrays.items():
        path = folder / f"{case_id}.npz"
        np.savez_compressed(path, allow_pickle=False, **stored)
        size = path.stat().st_size
        assert size <= MAX_CASE_BYTES, f"{path}: {size} bytes, a golden holds {MAX_CASE_BYTES}"
    manifest = {"op": op, "oracle": oracle, "cases": cases}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def read_op_goldens(root: Path) -> Iterator[Golden]:
    """Yield every golden below ``root/ops``, by op, case and dtype.

    Raises CheckpointError where the folder is missing or a manifest names what is not there.
    """
    manifests = sorted((root / "ops").glob("*/manifest.json"))
    if not manifests:
        raise CheckpointError(
            f"[golden] folder: no manifest below {str(root / 'ops')!r}; "
            "give the goldens of a checkout with --goldens",
            path=root,
        )
    for path in manifests:
        manifest = json.loads(path.read_text())
        for case_id, case in manifest["cases"].items():
            with np.load(path.with_name(f"{case_id}.npz")) as stored:
                for dtype, entry in case["dtypes"].items():
                    yield Golden(
                        op=manifest["op"],
                        case_id=case_id,
                        dtype=dtype,
                        origin=case["origin"],
                        oracle=manifest["oracle"]["callable"],
                        inputs=entry["scalars"]
                        | {
                            k: _from_file(stored[f"{dtype}.in.{k}"], spec)
                            for k, spec in entry["inputs"].items()
                        },
                        outputs={
                            k: _from_file(stored[f"{dtype}.out.{k}"], spec)
                            for k, spec in entry["outputs"].items()
                        },
                    )
