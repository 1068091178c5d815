"""The self-test: every kernel once whatever the time, and a wrong one is found."""

from collections.abc import Iterator
from typing import Any

import pytest

from pyvt import backends
from pyvt.dispatch import Candidate, current_backend, get_op
from pyvt.dispatch.table import register
from pyvt.testing.self_test import self_test


@pytest.fixture
def bent_relu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A backend ``bent`` whose only kernel adds one."""
    op = get_op("relu")
    reference = op.of_backend("numpy")
    assert reference is not None

    def kernel(out: Any, x: Any) -> None:
        reference.kernel(out, x)
        out += 1

    candidate = Candidate("bent", "host", kernel, 1, lambda dtypes: str(dtypes[0]) == "float32")
    register("relu", candidate)
    monkeypatch.setattr(backends, "load", lambda name: None)
    yield
    op.candidates.remove(candidate)


@pytest.mark.usefixtures("bent_relu")
def test_wrong_kernel_is_named_even_without_time() -> None:
    found = self_test("bent", 0.0)

    assert found.num_cases == {"relu f32": 1}
    assert [failure.partition("-")[0] for failure in found.failures] == ["relu"]
    assert found.num_left_out > 0


@pytest.mark.usefixtures("bent_relu")
def test_selection_of_the_backend_is_kept() -> None:
    before = current_backend()

    self_test("bent", 0.0)

    assert current_backend() == before


@pytest.mark.native
def test_every_op_in_every_format_is_tested_even_without_time() -> None:
    from pyvt.backends.cpu import _native

    found = self_test("cpu", 0.0)

    assert found.failures == []
    tested: dict[str, set[str]] = {}
    for kernel in found.num_cases:
        op, *dtypes = kernel.split()
        tested.setdefault(op, set()).update(dtypes)
    assert tested.keys() == _native.OPS.keys()
    for op, dtypes in _native.OPS.items():
        # Of f64 are parameters of samplers, beside logits in f32; a cache in f64 is a case's own.
        assert set(dtypes.split()) - {"f64"} <= tested[op], op
