"""Arrays of other libraries: taken in by DLPack without a copy, refused in words elsewhere."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, UnsupportedError


class Foreign:
    """What an op sees of another library's array: its DLPack."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **given: Any) -> Any:
        if self.device != (1, 0):
            raise BufferError("this memory is not the host's")
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_array_of_another_library_is_an_array_without_a_copy() -> None:
    host = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)

    taken = ops.from_dlpack(Foreign(host))

    np.testing.assert_array_equal(ops.relu(taken), np.maximum(host, 0))
    assert np.shares_memory(taken, host)


def test_memory_that_is_not_the_hosts_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedError, match=r"from_dlpack: .* got Foreign: .* not the host's"):
        ops.from_dlpack(Foreign(np.zeros(3), device=(2, 0)))


def test_op_that_gets_one_says_how_to_take_it_in() -> None:
    with pytest.raises(DTypeError, match=r"got Foreign; convert it with pyvt\.ops\.from_dlpack"):
        ops.relu(Foreign(np.zeros(3, np.float32)))


@pytest.mark.parametrize("what", [object(), "text", [1.0, 2.0], 5])
def test_what_is_no_array_is_refused_in_words(what: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"from_dlpack: expected an array.*got \w+;"):
        ops.from_dlpack(what)
