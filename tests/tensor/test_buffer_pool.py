"""BufferPool: alignment, reuse, and what keeps memory from being used again."""

import ml_dtypes
import numpy as np

from pyvt.tensor.buffer_pool import BufferPool


def test_array_has_the_shape_and_dtype_and_is_aligned() -> None:
    pool = BufferPool()

    for shape, dtype in (((3, 5), np.float32), ((7,), ml_dtypes.bfloat16), ((2, 0, 4), np.int8)):
        array = pool.empty(shape, dtype)
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    array = pool.empty((4, 100), np.float32)
    address, part = array.ctypes.data, array[1:, ::2].reshape(-1)[5:]

    del array
    assert pool.empty((4, 100), np.float32).ctypes.data != address

    del part
    assert pool.empty((4, 100), np.float32).ctypes.data == address


def test_arrays_that_live_share_no_memory() -> None:
    pool = BufferPool()
    arrays = [pool.empty((n,), np.uint8) for n in (1, 64, 65, 1000)]
    del arrays[1]
    arrays += [pool.empty((n,), np.uint8) for n in (60, 60, 900)]

    for value, array in enumerate(arrays):
        array[:] = value

    assert [set(array.tolist()) for array in arrays] == [{value} for value in range(len(arrays))]


def test_small_array_does_not_take_a_large_buffer() -> None:
    pool = BufferPool()
    pool.empty((1 << 20,), np.uint8)

    small = pool.empty((64,), np.uint8)

    assert pool.nbytes == (1 << 20) + small.nbytes


def test_owns_tells_arrays_of_the_pool_from_others() -> None:
    pool = BufferPool()
    array = pool.empty((8, 8), np.float32)

    assert pool.owns(array[3:, 2:])
    assert not pool.owns(np.empty((8, 8), np.float32))


def test_array_outlives_its_pool() -> None:
    array = BufferPool().empty((1000,), np.int64)

    array[:] = np.arange(1000)

    assert array.sum() == 499500


def test_unclaimed_array_is_the_same_memory_and_keeps_none() -> None:
    pool = BufferPool()
    array = pool.empty((3, 40), np.float32)
    array[:] = np.arange(120).reshape(3, 40)

    again = pool.unclaimed(array)

    assert again.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(again, array)
    del array
    assert pool.empty((120,), np.float32).ctypes.data == again.ctypes.data


def test_arrays_of_growing_batches_share_few_buffers() -> None:
    pool = BufferPool()

    for num_rows in range(1, 17):
        pool.empty((num_rows, 50_000), np.float32)

    assert pool.nbytes < 3 * 16 * 50_000 * 4


def test_only_large_arrays_are_of_the_pool_where_small_ones_may_not_be() -> None:
    pool = BufferPool()
    small, large = pool.empty_if_large((16, 16), np.float32), pool.empty_if_large((256, 256), "f4")
    assert not pool.owns(small)
    assert pool.owns(large)
    assert small.shape == (16, 16)
    assert large.dtype == np.float32
