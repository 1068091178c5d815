"""``pyvt bench offline``: prefill and decode of whole models, as shares of what the machine can do.

Engines run in processes of their own (``bench_engine``), so that each has its memory and its
backend to itself; the limits are measured in the same process before each repetition.
"""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.testing.bench_peers import (
    PYVT,
    WORKLOADS,
    Print,
    Samples,
    Workload,
    commands,
    file_sha256,
    measure,
    share_of_limit,
)
from pyvt.testing.model_cost import ModelCost
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine

HEADER = (
    *("model", "workload", "tokens/s", "ms", "GB/s", "GFLOP/s", "of read", "of peak"),
    "x reference",
)
OFFLINE = ("prefill 256", "prefill 512", "decode@128", "decode@512", "batch 4", "batch 16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRun:
    """One model: what was measured of it, and of the reference where that was asked for."""

    model: str
    path: Path
    cost: ModelCost
    threads: int
    samples: Samples
    reference: Samples | None

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines of the table, ``HEADER``."""
        for name, seconds in self.samples.seconds[PYVT].items():
            spent, workload = statistics.median(seconds), WORKLOADS[name]
            ratio = self._ratio(name)
            yield (
                self.model,
                name,
                f"{workload.num_tokens / spent:.1f}",
                f"{spent * 1000:.2f}",
                f"{self.cost.step_bytes / spent / 1e9:.1f}",
                f"{self._num_ops(workload) / spent / 1e9:.1f}",
                _percent(self._share(workload, seconds, is_read=True)),
                _percent(self._share(workload, seconds, is_read=False)),
                "" if ratio is None else f"{ratio:.1f}",
            )

    def record(self, command: str, root: Path) -> RunRecord:
        """Return the record of the run."""
        return RunRecord(
            command=command,
            model=self.model,
            model_id=file_sha256(self.path),
            backend="cpu",
            dtype=self.samples.dtype,
            prompt_tokens=512,
            new_tokens=16,
            concurrency=16,
            threads=self.threads,
            machine=this_machine(),
            commit=this_commit(root),
            features=tuple(self.samples.names.values()),
            figures=tuple(self._figures()),
            kernels=self.samples.kernels,
        )

    def _figures(self) -> Iterator[Figure]:
        for name, seconds in self.samples.seconds[PYVT].items():
            workload, ratio = WORKLOADS[name], self._ratio(name)
            yield Figure.of(name, "tokens/s", [workload.num_tokens / s for s in seconds])
            for kind, unit, amount in (
                ("memory", "GB/s", self.cost.step_bytes),
                ("products", "GFLOP/s", self._num_ops(workload)),
            ):
                yield Figure.of(f"{name}: {kind}", unit, [amount / s / 1e9 for s in seconds])
            for kind, is_read in (("read", True), ("peak", False)):
                share = self._share(workload, seconds, is_read=is_read)
                if share is not None:
                    yield Figure.of(f"{name}: share of {kind}", "", [share])
            if ratio is not None:
                yield Figure.of(f"{name}: ratio to the reference", "x", [ratio])
        yield Figure.of("resident", "MB", [self.samples.resident_bytes[PYVT] / 1e6])

    def _ratio(self, name: str) -> float | None:
        if self.reference is None:
            return None
        theirs = statistics.median(self.reference.seconds[PYVT][name])
        return theirs / statistics.median(self.samples.seconds[PYVT][name])

    def _num_ops(self, workload: Workload) -> int:
        layers, head = self.cost.layer_ops, self.cost.head_ops
        return workload.num_tokens * layers.total() + workload.num_logits * head.total()

    def _share(self, workload: Workload, seconds: list[float], *, is_read: bool) -> float | None:
        return share_of_limit(workload, self.cost, seconds, self.samples.limits, is_read=is_read)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def run_offline(
    model: str,
    path: Path,
    *,
    threads: int,
    repeats: int,
    has_reference: bool,
    settings: dict[str, str],
    report: Print,
) -> OfflineRun:
    """Measure one model.

    Args:
        model: what it is called.
        path: its file.
        threads: of the engine.
        repeats: repetitions after one that is not counted.
        has_reference: whether to run the reference too, once.
        settings: of the engine, such as its backend.
        report: takes a line after each repetition.
    """
    command = commands(path, threads=threads, scripts=Path())[PYVT]
    own = {PYVT: [*command, "--settings", json.dumps(settings)]}
    samples = measure(own, OFFLINE, repeats=repeats, is_busy_measured=False, report=report)
    reference = None
    if has_reference:
        other = {PYVT: [*command, "--settings", json.dumps({"backend": REFERENCE_BACKEND})]}
        reference = measure(other, OFFLINE, repeats=1, is_busy_measured=False, report=report)
    return OfflineRun(
        model=model,
        path=path,
        cost=ModelCost.of(path, samples.dtype),
        threads=threads,
        samples=samples,
        reference=reference,
    )
