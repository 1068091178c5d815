"""Timing of ops: what a case must move, shares of given limits, and the record."""

from pathlib import Path

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import ConfigError
from pyvt.ops.packed_layouts import LAYOUTS
from pyvt.testing import bench_op_cases, bench_ops, bench_sampler_cases, bench_weight_cases
from pyvt.testing.bench_case import BenchCase
from pyvt.testing.bench_limits import LOOPS, Limits, measure_limits
from pyvt.testing.bench_op_cases import bench_cases
from pyvt.testing.bench_ops import HEADER, OpTiming, ops_record, time_ops

CASE = BenchCase(
    op="relu",
    case="M=1",
    make=lambda rng: lambda: ops.relu(np.ones(8)),
    num_bytes=1000,
    num_ops=4000,
    loop="fma_f32",
)


def _timing(limits: Limits | None) -> OpTiming:
    return OpTiming(
        case=CASE, kernel="native", seconds=(1e-6, 2e-6, 9e-6), reference_s=2e-5, limits=limits
    )


def test_shares_are_of_the_limits() -> None:
    timing = _timing(Limits(read=5.0, loops={"fma_f32": 4.0}))

    row = dict(zip(HEADER, timing.row(), strict=True))

    assert (row["µs"], row["GB/s"], row["GFLOP/s"]) == ("2.0", "0.5", "2.0")
    assert (row["of read"], row["of peak"], row["x reference"]) == ("10%", "50%", "10.0")


def test_without_limits_there_are_no_shares() -> None:
    row = dict(zip(HEADER, _timing(None).row(), strict=True))

    assert (row["of read"], row["of peak"]) == ("", "")


def test_record_names_every_figure(tmp_path: Path) -> None:
    timing = _timing(Limits(read=5.0, loops={"fma_f32": 4.0}))

    record = ops_record([timing], command="c", backend="cpu", threads=2, root=tmp_path)

    names = [figure.name for figure in record.figures]
    assert names == [
        "relu M=1",
        "relu M=1: memory",
        "relu M=1: products",
        "relu M=1: share of read",
        "relu M=1: share of peak",
        "relu M=1: ratio to the reference",
    ]
    assert record.kernels == {"relu M=1": "native"}


def test_time_ops_runs_chosen_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ops, "measure_limits", lambda repetitions: None)
    monkeypatch.setattr(bench_ops, "_SAMPLE_S", 1e-4)

    found = list(time_ops("numpy", only=["rms_norm M=1"], repeats=2))

    assert [timing.case.op for timing in found] == ["rms_norm", "fused_add_rms_norm"]
    assert [len(timing.seconds) for timing in found] == [2, 2]
    assert [timing.kernel for timing in found] == ["numpy", "numpy"]


@pytest.mark.native
def test_products_of_every_format_run(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"HIDDEN": 256, "INNER": 16, "COLD_BYTES": 1}
    for name, value in small.items():
        monkeypatch.setattr(bench_op_cases, name, value)
    monkeypatch.setattr(bench_ops, "measure_limits", lambda repetitions: None)
    monkeypatch.setattr(bench_ops, "_SAMPLE_S", 1e-6)

    found = list(time_ops("cpu", only=["16x256 M=4"], repeats=1, has_reference=False))

    assert [timing.case.case.split()[0] for timing in found] == [*LAYOUTS, "bf16"]
    assert {timing.kernel for timing in found} == {"native"}


@pytest.mark.native
def test_every_native_op_is_timed_by_a_case_that_its_kernel_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyvt.backends.cpu import _native

    sizes = {"HIDDEN": 256, "INNER": 256, "DENSE_HIDDEN": 256, "DENSE_INNER": 16, "VOCAB": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(bench_weight_cases, name, value)
    for name, value in {"HIDDEN": 256, "INNER": 16, "COLD_BYTES": 1}.items():
        monkeypatch.setattr(bench_op_cases, name, value)
    monkeypatch.setattr(bench_sampler_cases, "VOCAB", 1000)
    monkeypatch.setattr(bench_ops, "measure_limits", lambda repetitions: None)
    monkeypatch.setattr(bench_ops, "_SAMPLE_S", 1e-6)
    first = {case.op: case for case in reversed(list(bench_cases()))}

    found = list(time_ops("cpu", repeats=1, cases=first.values))
    by_reference = list(time_ops("numpy", repeats=1, cases=first.values))

    assert {timing.case.op for timing in found} == _native.OPS.keys()
    assert {timing.kernel for timing in found} == {"native"}
    assert all(timing.reference_s is not None for timing in found)
    assert {timing.kernel for timing in by_reference} == {"numpy"}


def test_words_that_choose_no_case_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a part of a case"):
        list(time_ops("numpy", only=["zzz"], cases=lambda: [CASE]))


def test_cases_cover_the_formats_and_have_a_cost() -> None:
    cases = list(bench_cases())

    assert len({(case.op, case.case) for case in cases}) == len(cases)
    assert all(case.num_bytes > 0 for case in cases)
    assert {case.loop for case in cases if case.loop} <= {*LOOPS.values(), "bf16"}


@pytest.mark.native
def test_limits_of_this_machine_are_positive() -> None:
    limits = measure_limits(1)

    assert limits is not None
    assert limits.read > 0
    assert np.all(np.array(list(limits.loops.values())) > 0)
