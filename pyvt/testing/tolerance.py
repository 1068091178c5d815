"""The one table of tolerances, by (op class, dtype).

A comparison fails when ``|got − want| > atol + rtol · |want|`` anywhere, when the normalised mean
square error exceeds ``nmse``, or when one side is not finite where the other is. Integers, booleans
and infinities must be equal.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Bounds of one comparison; ``rtol`` is relative to the wanted value."""

    atol: float
    rtol: float
    nmse: float


# Half a unit in the last place of each dtype, with room for a different order of sums.
_ELEMENTWISE = {
    "f64": Tolerance(1e-12, 1e-12, 1e-24),
    "f32": Tolerance(1e-6, 2e-6, 1e-12),
    "bf16": Tolerance(1e-6, 8e-3, 1e-5),
    "f16": Tolerance(1e-6, 1e-3, 1e-6),
}
_REDUCTION = {
    "f64": Tolerance(1e-12, 1e-12, 1e-24),
    "f32": Tolerance(1e-5, 1e-5, 1e-11),
    "bf16": Tolerance(8e-3, 1.6e-2, 2e-5),
    "f16": Tolerance(1e-3, 2e-3, 1e-6),
}
# Activations in int8 against the same product in f32: only the mean square error has a meaning.
_Q8_AGAINST_NONE = Tolerance(1e-3, 1e6, 5e-4)
# A hidden row is quantised inside of the op: there a last bit decides now and then between two
# codes, which moves outputs by a hundredth part of one weight.
_EXPERTS_Q8 = {
    "f32": Tolerance(5e-3, 5e-3, 1e-6),
    "bf16": Tolerance(1.5e-2, 2e-2, 3e-5),
}
# Logits of whole tiny models, up to about 5: against transformers in the same dtype (a half against
# f64); at large positions, where the last bit of a frequency counts 20,000 times; and one model
# against itself, its sums cut differently by batch, chunk or file format.
_MODEL = {
    "f64": Tolerance(1e-12, 0.0, 1e-24),
    "f32": Tolerance(1e-4, 0.0, 1e-10),
    "bf16": Tolerance(0.2, 0.0, 2e-3),
    "f16": Tolerance(0.03, 0.0, 3e-5),
}
_MODEL_FAR = {"f64": Tolerance(1e-10, 0.0, 1e-20)}
_MODEL_SELF = {"f64": Tolerance(1e-12, 0.0, 1e-24), "f32": Tolerance(2e-5, 0.0, 1e-11)}
TOLERANCES: dict[str, dict[str, Tolerance]] = {
    "exact": {name: Tolerance(0.0, 0.0, 0.0) for name in ("f64", "f32", "bf16", "f16")},
    "elementwise": _ELEMENTWISE,
    "norm": _REDUCTION,
    "linear": _REDUCTION,
    "attention": _REDUCTION,
    "delta_rule": _REDUCTION,
    "rope": _REDUCTION,
    "softmax": _REDUCTION,
    # Weights are f32 whatever the logits are.
    "router": {name: _REDUCTION["f64" if name == "f64" else "f32"] for name in _REDUCTION},
    "experts_q8": _EXPERTS_Q8,
    "model": _MODEL,
    "model_far": _MODEL_FAR,
    "model_self": _MODEL_SELF,
    "q8_against_none": {name: _Q8_AGAINST_NONE for name in ("f64", "f32", "bf16", "f16")},
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What a comparison measured: the largest error, its share of the bound, and NMSE."""

    max_error: float
    share_of_bound: float
    nmse: float
    is_within: bool
    reason: str = ""


def compare(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], op_class: str, dtype: str
) -> Difference:
    """Compare two arrays under the table's row and return what was measured."""
    tolerance = TOLERANCES[op_class][dtype]
    if got.shape != want.shape:
        return Difference(np.inf, np.inf, np.inf, False, f"shape {got.shape} != {want.shape}")
    if want.dtype.kind in "iub":
        is_equal = bool(np.array_equal(got, want))
        error = 0.0 if is_equal else np.inf
        return Difference(error, error, error, is_equal, "" if is_equal else "integers differ")
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(
        got[~finite], want[~finite], equal_nan=True
    ):
        return Difference(np.inf, np.inf, np.inf, False, "not finite at different places")
    got, want = got[finite], want[finite]
    if got.size == 0:
        return Difference(0.0, 0.0, 0.0, True)
    error_at = np.abs(got - want)
    bound_at = tolerance.atol + tolerance.rtol * np.abs(want)
    excess = np.where(error_at == 0, 0.0, error_at / np.maximum(bound_at, 1e-300))
    power = float(np.mean(np.square(want)))
    nmse = float(np.mean(np.square(error_at))) / power if power > 0 else 0.0
    max_error, share = float(error_at.max()), float(excess.max())
    # Values as small as atol are all noise, so their share of the power is not counted.
    nmse_bound = max(tolerance.nmse, tolerance.atol**2 / max(power, 1e-300))
    is_within = share <= 1.0 and nmse <= nmse_bound
    text = f"max error {max_error:.3g}, {share:.3g} of bound, nmse {nmse:.3g}"
    reason = "" if is_within else text
    return Difference(max_error, share, nmse, is_within, reason)
