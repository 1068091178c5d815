"""Numbers of arrays as Python's, and what is left as it is."""

from typing import Any

import numpy as np
import pytest

from pyvt.plain_numbers import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([1, np.int64(2)], [1, 2]),
        ((np.str_("a"), "b"), ["a", "b"]),
        ([np.array([1, 2]), "text"], [[1, 2], "text"]),
    ],
)
def test_plain_arrays_and_scalars_become_pythons(value: Any, expected: Any) -> None:
    found = plain(value)

    assert (found, type(found)) == (expected, type(expected))
    if isinstance(found, list):
        assert not any(hasattr(each, "tolist") for each in found)


@pytest.mark.parametrize(
    "value", [None, 5, "a", b"a", memoryview(b"a"), [1, 2], (), [b"a"], {1: 2}]
)
def test_plain_leaves_the_rest_as_it_is(value: Any) -> None:
    assert plain(value) is value
