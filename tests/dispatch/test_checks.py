"""Checks of op arguments: what they bind, what they refuse, and the texts."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt.dispatch import Check
from pyvt.errors import DTypeError, ShapeError
from pyvt.tensor import QuantTensor
from pyvt.tensor.dtype import BF16, F32, F64, FLOATS, I64, Q4_0, Q8_0


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


@pytest.fixture
def check() -> Check:
    """The checks of one call of an op named twirl."""
    return Check("twirl")


def refuses(kind: type[Exception], text: str) -> Any:
    """Expect an error of exactly this text."""
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        pytest.param("T H", (3, 4), id="bound"),
        pytest.param("... H", (4,), id="no leading dims"),
        pytest.param("... H", (2, 3, 4), id="leading dims"),
        pytest.param("...", (), id="scalar"),
        pytest.param("T 2 _", (3, 2, 9), id="number and any"),
        pytest.param("T T", (0, 0), id="empty"),
    ],
)
def test_tensor_of_the_right_dims_passes(check: Check, dims: str, shape: tuple[int, ...]) -> None:
    check.tensor("x", zeros(*shape), dims, FLOATS)


def test_dim_is_bound_by_its_first_use(check: Check) -> None:
    check.tensor("x", zeros(3, 4), "T H", FLOATS)

    with refuses(ShapeError, "[twirl] weight: expected H=4, got 5"):
        check.tensor("weight", zeros(5), "H", FLOATS)

    assert check.dims == {"T": 3, "H": 4}


def test_dim_may_be_bound_by_the_caller() -> None:
    with refuses(ShapeError, "[twirl] x: expected R=2, got 3"):
        Check("twirl", R=2).tensor("x", zeros(3), "R", FLOATS)


@pytest.mark.parametrize(
    ("dims", "shape", "text"),
    [
        ("T H", (3,), "expected dims [T H], got shape (3,)"),
        ("T H", (3, 4, 5), "expected dims [T H], got shape (3, 4, 5)"),
        ("... N D", (3,), "expected dims [... N D], got shape (3,)"),
        ("T 2", (3, 4), "expected 2=2, got 4"),
        ("T T", (3, 4), "expected T=3, got 4"),
    ],
)
def test_tensor_of_wrong_dims_is_a_shape_error(
    check: Check, dims: str, shape: tuple[int, ...], text: str
) -> None:
    with refuses(ShapeError, f"[twirl] x: {text}"):
        check.tensor("x", zeros(*shape), dims, FLOATS)


def test_tensor_of_a_wrong_dtype_names_the_valid_ones(check: Check) -> None:
    with refuses(DTypeError, "[twirl] x: expected f64|f32|f16|bf16, got int64"):
        check.tensor("x", zeros(3, dtype=np.int64), "T", FLOATS)


@pytest.mark.parametrize("value", [[1.0], 1.0, None, np.float32(1)])
def test_value_that_is_no_array_is_a_dtype_error(check: Check, value: Any) -> None:
    text = f"got {type(value).__name__}; convert it with numpy.asarray"

    with pytest.raises(DTypeError, match=re.escape(text)):
        check.tensor("x", value, "T", FLOATS)


def test_optional_takes_none_and_checks_the_rest(check: Check) -> None:
    check.optional("bias", None, "N", FLOATS)

    with refuses(ShapeError, "[twirl] bias: expected dims [N], got shape (2, 2)"):
        check.optional("bias", zeros(2, 2), "N", FLOATS)


def test_quant_tensor_is_checked_by_its_logical_shape(check: Check) -> None:
    weight = QuantTensor(Q8_0, (2, 64), zeros(2, 68, dtype=np.uint8))

    check.tensor("weight", weight, "N K", (Q8_0,))

    assert check.dims == {"N": 2, "K": 64}
    with refuses(DTypeError, "[twirl] weight: expected q4_0, got q8_0"):
        check.tensor("weight", weight, "N K", (Q4_0,))


def test_f64_array_is_no_block_format(check: Check) -> None:
    """NumPy holds the dtype of f64 equal to None, which a block format has for a NumPy dtype."""
    with refuses(DTypeError, "[twirl] weight: expected q8_0, got float64"):
        check.tensor("weight", zeros(2, 64, dtype=np.float64), "N K", (Q8_0,))


def test_same_dtype_and_same_shape_name_the_other_argument(check: Check) -> None:
    with refuses(DTypeError, "[twirl] k: expected float32 as q, got float64"):
        check.same_dtype("k", zeros(3, dtype=np.float64), "q", zeros(3))
    with refuses(ShapeError, "[twirl] y: expected shape (3,) as x, got (1, 3)"):
        check.same_shape("y", zeros(1, 3), "x", zeros(3))


@pytest.mark.parametrize("value", ["bf16", BF16])
def test_named_dtype_takes_a_dtype_or_its_name(check: Check, value: Any) -> None:
    assert check.named_dtype("dtype", value, FLOATS) == ml_dtypes.bfloat16


def test_named_dtype_refuses_what_the_op_does_not_write(check: Check) -> None:
    with refuses(DTypeError, "[twirl] dtype: expected f64|f32, got i64"):
        check.named_dtype("dtype", I64, (F64, F32))
    with pytest.raises(DTypeError, match=r"did you mean 'bf16'\?"):
        check.named_dtype("dtype", "bf61", FLOATS)


@pytest.mark.parametrize("ids", [[], [0], [4, 0, 3]])
def test_index_within_bounds_passes(check: Check, ids: list[int]) -> None:
    check.index("ids", np.array(ids, np.int64), 5)


@pytest.mark.parametrize(("ids", "got"), [([0, 5], 5), ([-1, 2], -1), ([2**62], 2**62)])
def test_index_out_of_bounds_names_the_value(check: Check, ids: list[int], got: int) -> None:
    with refuses(ShapeError, f"[twirl] ids: expected values in [0, 5), got {got}"):
        check.index("ids", np.array(ids, np.int64), 5)


def test_output_is_made_where_none_is_given(check: Check) -> None:
    out = check.output(None, (2, 3), np.dtype(np.float16))

    assert (out.shape, out.dtype) == ((2, 3), np.float16)


def test_output_that_fits_is_returned(check: Check) -> None:
    out = zeros(2, 3)

    assert check.output(out, (2, 3), out.dtype) is out


def test_output_that_does_not_fit_is_refused(check: Check) -> None:
    read_only = zeros(2)
    read_only.flags.writeable = False

    with refuses(ShapeError, "[twirl] out: expected shape (2,), got (3,)"):
        check.output(zeros(3), (2,), np.float32)
    with refuses(DTypeError, "[twirl] out: expected float32, got float64"):
        check.output(zeros(2, dtype=np.float64), (2,), np.float32)
    with refuses(DTypeError, "[twirl] out: expected a numpy.ndarray, got list"):
        check.output([0.0, 0.0], (2,), np.float32)
    with pytest.raises(ShapeError, match=r"\[twirl\] out: expected a writeable array"):
        check.output(read_only, (2,), np.float32)


def test_disjoint_refuses_shared_memory(check: Check) -> None:
    buffer = zeros(8)
    check.disjoint("out", buffer[:4], x=buffer[4:], weight=zeros(2))

    with refuses(ShapeError, "[twirl] out: expected memory apart from x, got an overlap"):
        check.disjoint("out", buffer[:4], x=buffer[3:])


def test_fail_shows_the_value(check: Check) -> None:
    error = check.fail("cap", "a number above 0", "zero")

    assert str(error) == "[twirl] cap: expected a number above 0, got 'zero'"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(np.matrix, id="matrix", marks=pytest.mark.filterwarnings("ignore")),
        pytest.param(np.ma.masked_array, id="masked"),
        pytest.param(lambda array: array.view(np.recarray), id="other"),
    ],
)
def test_array_whose_operators_mean_something_else_is_refused(check: Check, kind: Any) -> None:
    array = kind(zeros(2, 4))

    with pytest.raises(DTypeError, match=r"x: expected a numpy.ndarray, got .*numpy.asarray"):
        check.tensor("x", array, "T H", FLOATS)
    with pytest.raises(DTypeError, match=r"out: expected a numpy.ndarray, got"):
        check.output(array, (2, 4), np.float32)


def test_memory_map_is_an_array(check: Check, tmp_path: Any) -> None:
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 4))

    check.tensor("x", array, "T H", FLOATS)
    assert check.output(array, (2, 4), np.float32) is array


def test_output_whose_elements_share_memory_is_refused(check: Check) -> None:
    rows = np.lib.stride_tricks.as_strided(zeros(4), (2, 4), (0, 4))

    with pytest.raises(ShapeError, match="memory of its own for each element"):
        check.output(rows, (2, 4), np.float32)


@pytest.mark.parametrize("value", [None, "1", True, [1.0], 1j, np.array([1.0, 2.0])])
def test_number_of_another_kind_is_refused(check: Check, value: Any) -> None:
    with pytest.raises(DTypeError, match="eps: expected a number"):
        check.number("eps", value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_number_out_of_range_is_refused(check: Check, value: float) -> None:
    with refuses(ShapeError, f"[twirl] eps: expected a finite number of at least 0, got {value}"):
        check.number("eps", value, low=0)


def test_number_beyond_f64_is_refused(check: Check) -> None:
    with pytest.raises(ShapeError, match="in the range of f64"):
        check.number("factor", 10**400)


@pytest.mark.parametrize("value", [0, np.float32(1.5), np.int64(3), 1e308])
def test_number_passes(check: Check, value: Any) -> None:
    check.number("eps", value, low=0)


@pytest.mark.parametrize("value", [1.0, None, True, "1"])
def test_integer_of_another_kind_is_refused(check: Check, value: Any) -> None:
    with pytest.raises(DTypeError, match="window: expected an integer"):
        check.integer("window", value, low=1)


@pytest.mark.parametrize("value", [0, 1 << 63])
def test_integer_out_of_range_is_refused(check: Check, value: int) -> None:
    with pytest.raises(ShapeError, match="an integer of at least 1 below 2"):
        check.integer("window", value, low=1)
