"""What all tests of devices share."""

from collections.abc import Iterator

import pytest

from pyvt.dispatch import use_backend


@pytest.fixture(autouse=True)
def numpy_again() -> Iterator[None]:
    """The reference, selected again after each test."""
    yield
    use_backend("numpy")
