"""``pyvt bench ops``: each op of a step by itself, as a share of the machine and against the
reference.

A sample is a run of calls of about 20 ms; the limits are measured before the first case and after
every few, and a share is of the latest.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyvt import backends
from pyvt.dispatch import get_op, use_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.errors import ConfigError
from pyvt.testing.bench_case import BenchCase, Call
from pyvt.testing.bench_limits import Limits, measure_limits
from pyvt.testing.bench_op_cases import bench_cases
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine

HEADER = ("op", "case", "kernel", "µs", "GB/s", "GFLOP/s", "of read", "of peak", "x reference")
_SAMPLE_S = 0.02
_CASES_A_LIMIT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTiming:
    """What one case gave.

    Attributes:
        case: what was called.
        kernel: the backend that served it.
        seconds: of a call, one a sample.
        reference_s: seconds of a call of the reference; None where it was not asked for.
        limits: of the machine, measured shortly before; None without the native backend.
    """

    case: BenchCase
    kernel: str
    seconds: tuple[float, ...]
    reference_s: float | None
    limits: Limits | None

    @property
    def median_s(self) -> float:
        """The median of the samples."""
        return statistics.median(self.seconds)

    @property
    def read_share(self) -> float | None:
        """Share of the read limit."""
        if self.limits is None:
            return None
        return self.case.num_bytes / self.median_s / 1e9 / self.limits.read

    @property
    def loop_share(self) -> float | None:
        """Share of the multiply-add limit; None for an op without products."""
        if self.limits is None or not self.case.loop or self.case.loop not in self.limits.loops:
            return None
        return self.case.num_ops / self.median_s / 1e9 / self.limits.loops[self.case.loop]

    def row(self) -> tuple[str, ...]:
        """Return the line of the table, ``HEADER``."""
        rate = self.case.num_ops / self.median_s / 1e9
        ratio = None if self.reference_s is None else self.reference_s / self.median_s
        return (
            self.case.op,
            self.case.case,
            self.kernel,
            f"{self.median_s * 1e6:.1f}",
            f"{self.case.num_bytes / self.median_s / 1e9:.1f}",
            f"{rate:.1f}" if self.case.num_ops else "",
            _percent(self.read_share),
            _percent(self.loop_share),
            "" if ratio is None else f"{ratio:.1f}",
        )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def time_ops(
    backend: str,
    *,
    only: Iterable[str] = (),
    repeats: int = 5,
    has_reference: bool = True,
    cases: Callable[[], Iterable[BenchCase]] = bench_cases,
) -> Iterator[OpTiming]:
    """Yield the timing of each case whose op or case holds a word of ``only``, or of all.

    Raises ConfigError where the backend cannot be had or no case is chosen.
    """
    backends.load(backend)
    words, limits = tuple(only), None
    chosen = [c for c in cases() if not words or any(w in f"{c.op} {c.case}" for w in words)]
    if not chosen:
        raise ConfigError(
            f"[bench] words: expected a part of a case such as 'q4_k M=1', got {words}"
        )
    for i, case in enumerate(chosen):
        if i % _CASES_A_LIMIT == 0:
            limits = measure_limits(2)
        use_backend(backend)
        call = case.make(np.random.default_rng(0))
        seconds = tuple(_samples(call, repeats))
        kernel = _kernel_of(case, call)
        reference_s = None
        if has_reference and backend != REFERENCE_BACKEND:
            use_backend(REFERENCE_BACKEND)
            reference_s = _seconds(call, 1)
            use_backend(backend)
        yield OpTiming(
            case=case, kernel=kernel, seconds=seconds, reference_s=reference_s, limits=limits
        )


def _kernel_of(case: BenchCase, call: Call) -> str:
    before = get_op(case.op).num_reference_calls
    call()
    is_reference = get_op(case.op).num_reference_calls > before
    return REFERENCE_BACKEND if is_reference else "native"


def _samples(call: Call, repeats: int) -> Iterator[float]:
    count = max(1, int(_SAMPLE_S / max(_seconds(call, 1), 1e-7)))
    _seconds(call, count)
    for _ in range(repeats):
        yield _seconds(call, count)


def _seconds(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _rates(name: str, timing: OpTiming) -> Iterator[Figure]:
    """Yield what is moved and computed in a second."""
    for kind, unit, amount in (
        ("memory", "GB/s", timing.case.num_bytes),
        ("products", "GFLOP/s", timing.case.num_ops),
    ):
        if amount:
            rates = [amount / seconds / 1e9 for seconds in timing.seconds]
            yield Figure.of(f"{name}: {kind}", unit, rates)


def ops_record(
    timings: Iterable[OpTiming], *, command: str, backend: str, threads: int, root: Path
) -> RunRecord:
    """Return the record of a run: of each case microseconds, rates, shares and ratio."""
    figures: list[Figure] = []
    kernels = {}
    for timing in timings:
        name = f"{timing.case.op} {timing.case.case}"
        kernels[name] = timing.kernel
        figures.append(Figure.of(name, "µs", [s * 1e6 for s in timing.seconds]))
        figures += _rates(name, timing)
        for kind, share in (("read", timing.read_share), ("peak", timing.loop_share)):
            if share is not None:
                figures.append(Figure.of(f"{name}: share of {kind}", "", [share]))
        if timing.reference_s is not None:
            ratio = timing.reference_s / timing.median_s
            figures.append(Figure.of(f"{name}: ratio to the reference", "x", [ratio]))
    return RunRecord(
        command=command,
        model="ops of Qwen3-0.6B",
        model_id="random",
        backend=backend,
        dtype="f32",
        prompt_tokens=512,
        new_tokens=1,
        concurrency=16,
        threads=threads,
        machine=this_machine(),
        commit=this_commit(root),
        features=backends.available(),
        figures=tuple(figures),
        kernels=kernels,
    )
