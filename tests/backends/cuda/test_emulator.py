"""What the emulator finds: each fault is a kernel that is wrong on purpose (csrc/cuda/emu)."""

import numpy as np
import pytest

from pyvt import backends
from pyvt.errors import KernelError, OutOfMemoryError

pytestmark = [pytest.mark.emulated]

if backends.why_not("cuda-emu") is None:
    from pyvt.backends.cuda import _native_emu as emu

NEIGHBOURS = [*range(1, 64), 0]


def results(name: str) -> list[list[float]]:
    """What the threads wrote, under eight orders."""
    found = []
    for seed in range(8):
        emu.seed(seed)
        found.append(emu.run_fault(name))
    return found


def test_right_kernel_gives_one_result_in_any_order() -> None:
    assert results("neighbour") == [NEIGHBOURS] * 8


@pytest.mark.parametrize("name", ["missing_barrier", "missing_warp_barrier", "unwritten_shared"])
def test_read_before_the_write_gives_nan(name: str) -> None:
    assert all(np.isnan(found).any() for found in results(name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("divergent_barrier", "threads wait at different barriers"),
        ("early_end", "waits at a barrier that thread .* never meets"),
        ("absent_lane", "waits for lanes of its warp that do not come"),
        ("lane_outside_mask", "is not of its own mask"),
        ("too_much_shared", "more shared memory than a block can have"),
    ],
)
def test_fault_is_an_error_that_says_where(name: str, text: str) -> None:
    with pytest.raises(KernelError, match=rf"kernel {name}, block \(0, 0, 0\).*{text}"):
        emu.run_fault(name)

    assert emu.run_fault("neighbour") == NEIGHBOURS


def test_memory_holds_nan_until_it_is_written() -> None:
    assert np.isnan(emu.empty((4, 3), np.float32).numpy()).all()
    emu.zeros((4, 3), np.float32)

    assert np.isnan(emu.empty((4, 3), np.float32).numpy()).all()


def test_copy_to_the_host_is_nan_until_somebody_waits() -> None:
    given = np.arange(5, dtype=np.float32)
    tensor = emu.upload(given)
    for _ in range(2):  # the second copy lands in memory that the first one has left
        fetched = tensor.fetch([tensor])

        assert np.isnan(fetched.unwaited()[0]).all()
        np.testing.assert_array_equal(fetched.arrays()[0], given)


def test_request_beyond_memory_is_a_typed_error_and_leaves_the_device_usable() -> None:
    emu.set_memory_limit(emu.pool_bytes() + (64 << 20))
    with pytest.raises(OutOfMemoryError, match=r"expected 128\.0 MiB on emulator, got .* free"):
        emu.empty((1 << 25,), np.float32)
    emu.set_memory_limit(4 << 30)

    np.testing.assert_array_equal(emu.zeros((2, 2), np.float32).numpy(), np.zeros((2, 2)))
