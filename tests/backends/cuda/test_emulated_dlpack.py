"""DLPack in and out: one memory for both sides. The emulator's memory is the host's."""

import gc

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.errors import UnsupportedError

pytestmark = [pytest.mark.emulated]

if backends.why_not("cuda-emu") is None:
    from pyvt.backends.cuda import _native_emu as emu


@pytest.fixture(autouse=True)
def emulator() -> None:
    """The backend of the device, selected."""
    use_backend("cuda-emu")


def test_numpy_reads_a_tensor_without_a_copy() -> None:
    tensor = emu.upload(np.arange(24, dtype=np.float32).reshape(4, 6))[1:, ::2]

    shared = np.from_dlpack(tensor)

    np.testing.assert_array_equal(shared, tensor.numpy())
    tensor[0, :1].fill_from(np.array([7], np.float32))
    emu.synchronize()
    assert shared[0, 0] == 7


def test_array_of_numpy_is_a_tensor_without_a_copy() -> None:
    host = np.arange(12, dtype=np.float32).reshape(3, 4)

    tensor = ops.from_dlpack(host.T)
    ops.relu(tensor, out=tensor)
    host[1, 2] = -3
    ops.relu(tensor, out=tensor)
    emu.synchronize()

    assert tensor.shape == (4, 3)
    assert host[1, 2] == 0


def test_memory_lives_as_long_as_a_side_holds_it() -> None:
    shared = np.from_dlpack(emu.upload(np.full((64,), 5, np.int32)))
    tensor = ops.from_dlpack(np.full((64,), 6, np.int64))
    gc.collect()
    emu.empty((64,), np.int32)
    emu.synchronize()

    assert set(shared.tolist()) == {5}
    assert set(tensor.tolist()) == {6}


def test_dtype_without_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a dtype that kernels know"):
        ops.from_dlpack(np.zeros(3, np.complex64))


def test_memory_of_another_device_is_refused() -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 1)

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("memory of another device was asked for")

    with pytest.raises(UnsupportedError, match="expected memory of this device, got another's"):
        ops.from_dlpack(Elsewhere())


def test_array_that_runs_backwards_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="expected strides of at least 0"):
        ops.from_dlpack(np.arange(6, dtype=np.float32)[::-1])
