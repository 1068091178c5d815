"""The op table: ranks, selection, switches, and what its errors say."""

import re
import threading
from typing import Any

import numpy as np
import pytest

from pyvt.dispatch import (
    Candidate,
    Op,
    all_ops,
    allocating,
    computing_on,
    empty,
    get_op,
    table,
    tapped,
)
from pyvt.errors import ConfigError, UnsupportedError

ONE = np.ones(1, np.float32)


class DeviceArray:
    """The two attributes by which the table knows a device tensor."""

    device_type = "cuda"
    dtype = np.dtype(np.float32)


class Recorder:
    """Kernels that note their label, and an op to register them with."""

    def __init__(self, name: str) -> None:
        self.calls: list[str] = []
        self.op = table.declare(name)

    def add(self, label: str, backend: str, priority: int = 10, **rest: Any) -> None:
        """Register a kernel of a backend through the public door."""

        def kernel(*_: Any) -> None:
            self.calls.append(label)

        device_type = rest.pop("device_type", "host")
        table.register(self.op.name, Candidate(backend, device_type, kernel, priority, **rest))

    def add_reference(self) -> None:
        """Register the reference."""
        self.op.reference(lambda *_: self.calls.append("reference"))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """An op of this test alone, in a table and a selection that end with it."""
    monkeypatch.setattr(table, "_OPS", dict(table._OPS))
    monkeypatch.setattr(table, "_selection", table._Selection())
    monkeypatch.delenv("PYVT_DISABLE_KERNELS", raising=False)
    monkeypatch.delenv("PYVT_STRICT", raising=False)
    return Recorder("twirl")


def test_call_without_native_kernel_runs_the_counted_reference(recorder: Recorder) -> None:
    recorder.add_reference()

    recorder.op(ONE, ONE)

    assert recorder.calls == ["reference"]
    assert table.reference_call_counts()["twirl"] == 1


def test_call_before_use_backend_stays_on_the_reference(recorder: Recorder) -> None:
    recorder.add_reference()
    recorder.add("fast", "cpu")

    recorder.op(ONE)

    assert recorder.calls == ["reference"]


def test_use_backend_moves_host_arrays_and_back(recorder: Recorder) -> None:
    recorder.add_reference()
    recorder.add("fast", "cpu")

    table.use_backend("cpu")
    recorder.op(ONE)
    table.use_backend("numpy")
    recorder.op(ONE)

    assert recorder.calls == ["fast", "reference"]
    assert recorder.op.num_reference_calls == 1
    assert table.current_backend() == "numpy"


def test_candidates_are_ranked_by_priority_then_name(recorder: Recorder) -> None:
    recorder.add("low", "zeta", priority=5)
    recorder.add("late name", "beta", priority=10)
    recorder.add("early name", "alpha", priority=10)
    recorder.add_reference()

    assert [c.backend for c in recorder.op.candidates] == ["alpha", "beta", "zeta", "numpy"]


def test_kernel_of_priority_zero_is_not_counted_as_reference(recorder: Recorder) -> None:
    recorder.add("fast", "cpu", priority=0)
    table.use_backend("cpu")

    recorder.op(ONE)

    assert recorder.calls == ["fast"]
    assert recorder.op.num_reference_calls == 0


def test_registration_after_a_call_takes_effect(recorder: Recorder) -> None:
    recorder.add_reference()
    recorder.add("other op", "cpu", supports=lambda _: False)
    table.use_backend("cpu")
    recorder.op(ONE)

    recorder.add("fast", "gpuish", device_type="cuda")
    recorder.op(DeviceArray())

    assert recorder.calls == ["reference", "fast"]


def test_device_tensor_goes_to_its_device_whatever_the_host_backend(recorder: Recorder) -> None:
    """Host and device tensors of one dtype do not share a cached choice."""
    recorder.add_reference()
    recorder.add("device", "cuda", device_type="cuda")

    recorder.op(ONE)
    recorder.op(DeviceArray())
    recorder.op(ONE)

    assert recorder.calls == ["reference", "device", "reference"]


def test_device_tensor_never_reaches_the_reference(recorder: Recorder) -> None:
    recorder.add_reference()

    with pytest.raises(UnsupportedError, match="on cuda"):
        recorder.op(DeviceArray())


def test_supports_is_asked_once_for_each_combination_of_dtypes(recorder: Recorder) -> None:
    asked = []

    def supports(dtypes: tuple[Any, ...]) -> bool:
        asked.append(dtypes)
        return dtypes[0] == np.float32

    recorder.add_reference()
    recorder.add("fast", "cpu", supports=supports)
    table.use_backend("cpu")

    recorder.op(ONE, 0.5)
    recorder.op(np.ones(7, np.float32), 0.25)
    recorder.op(np.ones(1), 0.5)

    assert recorder.calls == ["fast", "fast", "reference"]
    assert asked == [(np.float32, None), (np.float64, None)]


@pytest.mark.parametrize("value", ["twirl", "twirl:cpu", "rms_norm, twirl:cpu ,x"])
def test_disabled_kernel_is_left_out(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    recorder.add_reference()
    recorder.add("fast", "cpu")
    table.use_backend("cpu")
    monkeypatch.setenv("PYVT_DISABLE_KERNELS", value)

    recorder.op(ONE)

    assert recorder.calls == ["reference"]


@pytest.mark.parametrize("value", ["twirl:cuda", "other", "twirl:numpy"])
def test_disabling_another_kernel_changes_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    recorder.add_reference()
    recorder.add("fast", "cpu")
    table.use_backend("cpu")
    monkeypatch.setenv("PYVT_DISABLE_KERNELS", value)

    recorder.op(ONE)

    assert recorder.calls == ["fast"]


def test_strict_makes_the_reference_an_error(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.add_reference()
    monkeypatch.setenv("PYVT_STRICT", "1")

    with pytest.raises(UnsupportedError, match="PYVT_STRICT=1 bars the reference"):
        recorder.op(ONE)

    assert recorder.calls == []
    assert recorder.op.num_reference_calls == 0


def test_strict_lets_a_native_kernel_run(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.add_reference()
    recorder.add("fast", "cpu", priority=-1)
    table.use_backend("cpu")
    monkeypatch.setenv("PYVT_STRICT", "1")

    recorder.op(ONE)

    assert recorder.calls == ["fast"]


def test_unsupported_error_lists_what_exists(recorder: Recorder) -> None:
    recorder.add("fast", "cpu", supports=lambda _: False)
    recorder.add("device", "cuda", device_type="cuda")
    table.use_backend("cpu")
    text = (
        "[twirl] kernel: none for (float32, -) on host under backend 'cpu'; "
        "registered: cpu on host, cuda on cuda"
    )

    with pytest.raises(UnsupportedError, match=re.escape(text)):
        recorder.op(ONE, 2)


def test_unsupported_error_of_an_empty_op_says_none(recorder: Recorder) -> None:
    with pytest.raises(UnsupportedError, match="registered: none"):
        recorder.op(ONE)


def test_backend_may_register_an_op_once(recorder: Recorder) -> None:
    recorder.add("fast", "cpu")

    with pytest.raises(ConfigError, match="'cpu' is registered twice"):
        recorder.add("again", "cpu")


def test_reference_may_be_registered_once(recorder: Recorder) -> None:
    recorder.add_reference()

    with pytest.raises(ConfigError, match="'numpy' is registered twice"):
        recorder.add_reference()


def test_op_may_be_declared_once(recorder: Recorder) -> None:
    with pytest.raises(ConfigError, match=re.escape("[twirl] op: declared twice")):
        table.declare("twirl")


def test_get_op_of_an_unknown_name_offers_a_near_miss(recorder: Recorder) -> None:
    with pytest.raises(ConfigError, match=r"'twril' is unknown; did you mean 'twirl'\?"):
        get_op("twril")


def test_register_before_the_declaration_waits_for_it() -> None:
    candidate = Candidate("cpu", "host", lambda: None, 1)
    table.register("twirll", candidate)

    assert table.undeclared_kernels() == ("twirll",)

    op = table.declare("twirll")

    assert op.candidates == [candidate]
    assert table.undeclared_kernels() == ()
    del table._OPS["twirll"]


def test_use_backend_of_an_unknown_name_lists_the_loaded_ones(recorder: Recorder) -> None:
    recorder.add("fast", "cpu")

    with pytest.raises(ConfigError, match=r"'cpuu' is not loaded; did you mean 'cpu'\?") as caught:
        table.use_backend("cpuu")

    assert caught.value.field == "backend"
    assert table.current_backend() == "numpy"


def test_all_ops_come_in_the_order_of_their_names(recorder: Recorder) -> None:
    table.declare("zoom")
    table.declare("bend")

    names = [op.name for op in all_ops()]

    assert names == sorted(names)
    assert {"bend", "twirl", "zoom"} <= set(names)


def test_reference_meets_infinities_without_a_warning(recorder: Recorder) -> None:
    recorder.op.reference(lambda out, x: np.subtract(x, x, out=out))
    out = np.zeros(1)

    recorder.op(out, np.full(1, np.inf))

    assert np.isnan(out[0])


def test_tap_is_given_every_call_and_runs_it(recorder: Recorder) -> None:
    recorder.add_reference()
    seen: list[tuple[str, str, int, int]] = []

    def tap(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        num_before = len(recorder.calls)
        op.run(candidate, args)
        seen.append((op.name, candidate.backend, num_before, len(recorder.calls)))

    with tapped(tap):
        recorder.op(ONE, ONE)
    recorder.op(ONE)

    assert seen == [("twirl", "numpy", 0, 1)]


def test_outputs_come_from_the_innermost_allocator_and_then_from_the_one_before() -> None:
    outer, inner = np.zeros(2), np.zeros(3)
    with allocating(lambda shape, dtype: outer):
        with allocating(lambda shape, dtype: inner):
            assert empty((1,), "f4") is inner
        assert empty((1,), "f4") is outer
    assert empty((1,), "f4").shape == (1,)


def test_tap_allocator_and_backend_are_those_of_one_thread(recorder: Recorder) -> None:
    recorder.add_reference()
    recorder.add("other", "other")
    tapped_calls: list[str] = []
    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append((table.current_backend(), empty((1,), np.float32) is ONE))
        recorder.op(ONE)
        with tapped(lambda op, candidate, args: None):  # taps of two threads do not meet
            seen.append("tapped")

    with (
        computing_on("other"),
        allocating(lambda shape, dtype: ONE),
        tapped(lambda op, candidate, args: tapped_calls.append(candidate.backend)),
    ):
        recorder.op(ONE)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert (tapped_calls, recorder.calls) == (["other"], ["reference"])
    assert seen == [("numpy", False), "tapped"]
    assert table.current_backend() == "numpy"


def test_backend_of_a_thread_must_be_loaded() -> None:
    with pytest.raises(ConfigError, match="'nowhere' is not loaded"), computing_on("nowhere"):
        pass
