"""Which dtypes of a call a native kernel serves; the rules that all native backends share."""

from collections.abc import Callable
from typing import Any

from pyvt.tensor.dtype import DTYPES, F32, DType

Predicate = Callable[[tuple[Any, ...]], bool]


def supports_dtypes(names: str) -> Predicate:
    """Return a predicate: every float dtype and block format of a call is one of ``names``.

    The dtype of a packed weight counts as that of an array.
    """
    listed = [DTYPES[name] for name in names.split()]
    allowed = {*listed, *(dtype.numpy for dtype in listed if dtype.numpy is not None)}

    def supports(dtypes: tuple[Any, ...]) -> bool:
        return all(dtype in allowed for dtype in dtypes if _is_counted(dtype))

    return supports


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


def supports_op(op: str, names: str) -> Predicate:
    """Return the predicate of an op whose kernel serves the dtypes ``names``."""
    supports, rule = supports_dtypes(names), _RULES.get(op)
    if rule is None:
        return supports
    return lambda dtypes: supports(dtypes) and rule(dtypes)
