"""The threads of the BLAS that NumPy multiplies with."""

from collections.abc import Iterator

import pytest

from pyvt.tensor.blas import blas_threads, set_blas_threads


@pytest.fixture
def num_threads() -> Iterator[int]:
    """The number before the test, which is set again after it."""
    before = blas_threads()
    if before is None:
        pytest.skip("the BLAS of this NumPy takes no number of threads")
    yield before
    set_blas_threads(before)


def test_set_blas_threads_is_what_blas_says(num_threads: int) -> None:
    assert set_blas_threads(num_threads + 1)
    assert blas_threads() == num_threads + 1
    assert set_blas_threads(1)
    assert blas_threads() == 1


def test_blas_without_a_function_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyvt.tensor.blas._FUNCTIONS", (("no_such_set", "no_such_get"),))

    assert not set_blas_threads(2)
    assert blas_threads() is None
