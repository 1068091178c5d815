"""Captured steps: nothing runs twice, replay equals eager to the bit."""

from types import ModuleType

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.errors import KernelError
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]


@pytest.fixture
def device() -> ModuleType:
    use_backend(NAME)
    return native()


def test_capture_runs_once_and_replays_over_what_the_inputs_then_hold(
    device: ModuleType,
) -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((2, 3, 48), np.float32), np.ones(48, np.float32)
    scale = device.upload(weight)
    given, residual = device.upload(x[0]), device.zeros((3, 48), np.float32)
    graph = device.Graph()
    graph.start(device.Pool())
    out = ops.fused_add_rms_norm(given, residual, scale, 1e-6)
    graph.stop()
    np.testing.assert_array_equal(residual.numpy(), x[0])

    given.fill_from(x[1])
    graph.run()

    sums = device.upload(x[0])
    want = ops.fused_add_rms_norm(device.upload(x[1]), sums, scale, 1e-6)
    assert out.numpy().tobytes() == want.numpy().tobytes()
    assert residual.numpy().tobytes() == sums.numpy().tobytes()
    assert len(graph) == 1


def test_copy_to_the_device_inside_of_a_capture_is_an_error(device: ModuleType) -> None:
    graph = device.Graph()
    graph.start(device.Pool())

    with pytest.raises(KernelError, match="not permitted inside of a capture"):
        device.upload(np.zeros(3, np.float32))

    graph.stop()


def test_waiting_inside_of_a_capture_is_an_error(device: ModuleType) -> None:
    graph = device.Graph()
    graph.start(device.Pool())

    with pytest.raises(KernelError, match="not permitted while the stream is captured"):
        device.zeros((2,), np.float32).numpy()

    graph.stop()
    with pytest.raises(KernelError, match="expected a new graph"):
        graph.start(device.Pool())
