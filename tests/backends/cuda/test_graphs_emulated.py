"""Captured steps: nothing runs twice, replay equals eager to the bit."""

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.errors import KernelError

pytestmark = [pytest.mark.emulated]

if backends.why_not("cuda-emu") is None:
    from pyvt.backends.cuda import _native_emu as emu


@pytest.fixture(autouse=True)
def emulated() -> None:
    use_backend("cuda-emu")


def test_capture_runs_once_and_replays_over_what_the_inputs_then_hold() -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((2, 3, 48), np.float32), np.ones(48, np.float32)
    given, residual = emu.upload(x[0]), emu.zeros((3, 48), np.float32)
    graph = emu.Graph()
    graph.start(emu.Pool())
    out = ops.fused_add_rms_norm(given, residual, emu.upload(weight), 1e-6)
    graph.stop()
    np.testing.assert_array_equal(residual.numpy(), x[0])

    given.fill_from(x[1])
    graph.run()

    sums = emu.upload(x[0])
    want = ops.fused_add_rms_norm(emu.upload(x[1]), sums, emu.upload(weight), 1e-6)
    assert out.numpy().tobytes() == want.numpy().tobytes()
    assert residual.numpy().tobytes() == sums.numpy().tobytes()
    assert len(graph) == 1


def test_waiting_inside_of_a_capture_is_an_error() -> None:
    graph = emu.Graph()
    graph.start(emu.Pool())

    with pytest.raises(KernelError, match="not permitted while the stream is captured"):
        emu.zeros((2,), np.float32).numpy()

    graph.stop()
    with pytest.raises(KernelError, match="expected a new graph"):
        graph.start(emu.Pool())
