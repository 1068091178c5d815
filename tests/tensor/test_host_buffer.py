"""Host buffers: aligned and writable, small and large."""

import pytest

from pyvt.tensor.host_buffer import host_buffer


@pytest.mark.parametrize("num_bytes", [0, 1, 100, (4 << 20) - 1, 4 << 20, (5 << 20) + 3])
def test_host_buffer_is_aligned_and_writable(num_bytes: int) -> None:
    buffer = host_buffer(num_bytes)

    buffer[...] = 7
    assert buffer.shape == (num_bytes,)
    assert not num_bytes or buffer.ctypes.data % 64 == 0
    assert int(buffer.sum()) == 7 * num_bytes
