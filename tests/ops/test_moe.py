"""Router, experts and the shared expert on the reference: what the cases do not say, refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import ConfigError, DTypeError, PyvtError, ShapeError
from pyvt.ops.packed_layouts import pack_tiles
from pyvt.tensor.dtype import Q8_0
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 8), np.float32)
IDS = np.array([[0, 2], [3, 1], [2, 3]], np.int32)
SHARES = np.full((3, 2), 0.5, np.float32)
WIDE = RNG.standard_normal((4, 5, 8), np.float32)
NARROW = RNG.standard_normal((4, 8, 5), np.float32)
# Sizes of whole blocks.
_WIDER: dict[str, Any] = {
    "x": RNG.standard_normal((3, 64), np.float32),
    "up": np.zeros((4, 5, 64), np.float32),
    "down": np.zeros((4, 64, 5), np.float32),
}
LOGITS = np.array([[1.0, 3.0, 2.0, 3.0]], np.float32)


def _experts(**changes: Any) -> Any:
    call: dict[str, Any] = {
        "x": X,
        "expert_ids": IDS,
        "expert_weights": SHARES,
        "gate": WIDE,
        "up": WIDE,
        "down": NARROW,
    }
    return ops.fused_experts(**(call | changes))


def _ordered(num_experts: int, size: int, last: int) -> QuantTensor:
    """A stack [4, 5, 64] with other orders of columns than it may have."""
    columns = np.full((num_experts, size), last, np.int32)
    return replace(random_weight(RNG, Q8_0, 4, 5, 64), columns=columns)


def test_equal_logits_go_by_the_lowest_id() -> None:
    weights, ids = ops.router_topk(LOGITS, 3, renormalize=True)

    assert ids.tolist() == [[1, 3, 2]]
    assert weights[0, 0] == weights[0, 1] > weights[0, 2]
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_router_is_the_formula_for_hard_logits(dtype: Any, renormalize: bool) -> None:
    """All negative, equal, huge and nearly equal logits; sums are wider than bf16."""
    rows = [
        [-9.0, -3.5, -7.0, -4.0],
        [-2.0] * 4,
        [1e4, -1e4, 1e4, 0.0],
        [0.5, 0.50390625, 0.5, 0.5],
    ]
    logits = np.array(rows, dtype)

    weights, ids = ops.router_topk(logits, 2, renormalize=renormalize)

    exact = logits.astype(np.float64)
    shares = np.exp(exact - exact.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    want_ids = np.argsort(-exact, axis=1, kind="stable")[:, :2]
    want = np.take_along_axis(shares, want_ids, 1)
    want /= want.sum(1, keepdims=True) if renormalize else 1
    assert ids.tolist() == want_ids.tolist() == [[1, 3], [0, 1], [0, 2], [1, 0]]
    np.testing.assert_allclose(weights, want, rtol=1e-6)


def test_weights_as_they_are_are_shares_of_all_experts() -> None:
    weights, _ = ops.router_topk(LOGITS, 2, renormalize=False)

    want = np.exp(3.0) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(weights, [[want, want]], rtol=1e-6)


def test_nan_is_the_last_choice_and_shows_in_the_weights() -> None:
    logits = np.array([[np.nan, 1.0, 2.0]], np.float32)

    weights, ids = ops.router_topk(logits, 3, renormalize=True)

    assert ids.tolist() == [[2, 1, 0]]
    assert np.isnan(weights).all()


def test_each_token_gets_what_it_gets_alone() -> None:
    together = _experts()

    for t in range(3):
        row = slice(t, t + 1)
        alone = _experts(x=X[row], expert_ids=IDS[row], expert_weights=SHARES[row])
        np.testing.assert_allclose(together[row], alone, rtol=1e-5, atol=1e-6)


def test_stack_gives_the_same_plain_packed_or_in_blocks() -> None:
    rng = np.random.default_rng(1)
    gate, up = (random_weight(rng, Q8_0, 4, 32, 64) for _ in range(2))
    down, x = random_weight(rng, Q8_0, 4, 64, 32), rng.standard_normal((3, 64), np.float32)
    forms: list[Callable[[QuantTensor], Any]] = [lambda w: w, pack_tiles, ops.dequantize]

    blocks, tiles, plain = (
        _experts(x=x, gate=form(gate), up=form(up), down=form(down)) for form in forms
    )

    assert blocks.tobytes() == tiles.tobytes()
    np.testing.assert_allclose(plain, blocks, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [lambda w: w, pack_tiles], ids=["blocks", "packed"])
def test_stacks_with_columns_in_other_orders_are_the_matrices_with_them_put_back(
    form: Callable[[QuantTensor], Any],
) -> None:
    rng = np.random.default_rng(1)
    names, shapes = ("gate", "up", "down"), ((4, 32, 64), (4, 32, 64), (4, 64, 32))
    stacks: dict[str, Any] = {}
    for name, shape in zip(names, shapes, strict=True):
        own = np.tile(np.arange(shape[2], dtype=np.int32), (4, 1))
        columns = rng.permuted(own, axis=1)
        stacks[name] = replace(random_weight(rng, Q8_0, *shape), columns=columns)
    x = rng.standard_normal((3, 64), np.float32)

    got = _experts(x=x, **{name: replace(form(w), columns=w.columns) for name, w in stacks.items()})

    want = _experts(x=x, **{name: ops.dequantize(w) for name, w in stacks.items()})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_shared_expert_is_added_by_its_gate() -> None:
    gate = np.array([[-100.0], [0.0], [100.0]], np.float32)
    out = X.copy()

    returned = ops.add_shared_expert(out, np.ones_like(X), gate, out=out)

    assert returned is out
    np.testing.assert_allclose(out - X, np.repeat([[0.0], [0.5], [1.0]], 8, axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ops.router_topk(LOGITS, 5, renormalize=True), ShapeError, "at most E=4, got 5"),
        (lambda: ops.router_topk(LOGITS, 0, renormalize=True), ShapeError, "of at least 1"),
        (lambda: ops.router_topk(LOGITS[0], 1, renormalize=True), ShapeError, "dims [T E]"),
        (lambda: _experts(expert_ids=IDS + 1), ShapeError, "values in [0, 4), got 4"),
        (lambda: _experts(expert_ids=IDS - 1), ShapeError, "values in [0, 4), got -1"),
        (lambda: _experts(expert_ids=SHARES), DTypeError, "expected i32|i64, got float32"),
        (lambda: _experts(expert_weights=SHARES[:, :1]), ShapeError, "expected K=2, got 1"),
        (lambda: _experts(up=WIDE[:3]), ShapeError, "up: expected E=4, got 3"),
        (lambda: _experts(down=WIDE), ShapeError, "down: expected H=8, got 5"),
        (lambda: _experts(gate=WIDE[0]), ShapeError, "gate: expected dims [E I H]"),
        (
            lambda: _experts(gate=PackedTensor(Q8_0, (17, 32), "tile16", np.zeros(1088, "u1"))),
            ShapeError,
            "gate: expected dims [E I H]",
        ),
        (
            lambda: _experts(**_WIDER, gate=_ordered(4, 64, 64)),
            ShapeError,
            "gate.columns: expected values",
        ),
        (
            lambda: _experts(**_WIDER, gate=_ordered(3, 64, 0)),
            ShapeError,
            "gate.columns: expected E=4",
        ),
        (
            lambda: _experts(**_WIDER, gate=_ordered(4, 32, 0)),
            ShapeError,
            "gate.columns: expected H=64",
        ),
        (lambda: _experts(act="q4"), ConfigError, "'q4' is unknown; valid names: none, q8"),
        (lambda: _experts(out=X), ShapeError, "out: expected memory apart from x"),
        (
            lambda: ops.add_shared_expert(X, X, X),
            ShapeError,
            "gate: expected 1=1, got 8",
        ),
        (
            lambda: ops.add_shared_expert(X, X.astype(np.float16), X[:, :1]),
            DTypeError,
            "shared: expected float32 as routed, got float16",
        ),
    ],
)
def test_moe_bad_argument_is_refused(
    call: Callable[[], object], error: type[PyvtError], text: str
) -> None:
    with pytest.raises(error) as caught:
        call()

    assert text in str(caught.value)
