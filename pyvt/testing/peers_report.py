"""What ``pyvt bench peers`` prints and records of one model."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyvt.testing.bench_peers import (
    BUSY_MUST,
    PYVT,
    TARGETS,
    WORKLOADS,
    Samples,
    Target,
    file_sha256,
    share_of_limit,
)
from pyvt.testing.model_cost import ModelCost
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine

HEADER = ("model", "workload", "engine", "tokens/s", "ratio", "must", "aim", "share", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersRun:
    """One model under measurement: its name, file, cost, threads and samples."""

    model: str
    path: Path
    cost: ModelCost
    threads: int
    samples: Samples

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines of the table, ``HEADER``: one for each engine and workload."""
        for workload, ours in self.samples.seconds[PYVT].items():
            target = next(
                (t for t in TARGETS if (t.model, t.workload) == (self.model, workload)), None
            )
            yield self._own_row(workload, ours, target)
            for engine, by_workload in self.samples.seconds.items():
                if engine != PYVT:
                    speed = self._rate(workload, by_workload[workload])
                    yield (self.model, workload, engine, f"{speed:.1f}", "", "", "", "", "")
        yield from self._busy_rows()
        yield from self._memory_rows()

    def _own_row(
        self, workload: str, seconds: list[float], target: Target | None
    ) -> tuple[str, ...]:
        ratios = self.samples.ratios(workload)
        ratio = statistics.median(ratios) if ratios else None
        share = share_of_limit(WORKLOADS[workload], self.cost, seconds, self.samples.limits)
        return (
            self.model,
            workload,
            PYVT,
            f"{self._rate(workload, seconds):.1f}",
            "" if ratio is None else f"{ratio:.2f}",
            "" if target is None else f"{target.must:g}",
            _aim(target),
            "" if share is None else f"{share:.0%}",
            "" if target is None or ratio is None else _verdict(ratio >= target.must),
        )

    def _busy_rows(self) -> Iterator[tuple[str, ...]]:
        for engine, by_workload in self.samples.busy.items():
            for workload, seconds in by_workload.items():
                kept = statistics.median(self.samples.seconds[engine][workload])
                kept /= statistics.median(seconds)
                must = f"{BUSY_MUST:g}" if engine == PYVT else ""
                verdict = _verdict(kept >= BUSY_MUST) if engine == PYVT else ""
                speed = f"{self._rate(workload, seconds):.1f}"
                name = f"{workload}, busy core"
                yield (self.model, name, engine, speed, f"{kept:.2f}", must, "", "", verdict)

    def _memory_rows(self) -> Iterator[tuple[str, ...]]:
        sizes = self.samples.resident_bytes
        peers = [size for name, size in sizes.items() if name != PYVT]
        for engine, size in sizes.items():
            ratio = sizes[PYVT] / min(peers) if engine == PYVT and peers else None
            yield (
                self.model,
                "resident MB",
                engine,
                f"{size / 1e6:.0f}",
                "" if ratio is None else f"{ratio:.2f}",
                "" if ratio is None else "<= 1",
                "",
                "",
                "" if ratio is None else _verdict(ratio <= 1),
            )

    def _rate(self, workload: str, seconds: list[float]) -> float:
        return WORKLOADS[workload].num_tokens / statistics.median(seconds)

    def record(self, command: str, root: Path, dtype: str) -> RunRecord:
        """Return the record of the run: rates, ratios, shares, limits and memory."""
        return RunRecord(
            command=command,
            model=self.model,
            model_id=file_sha256(self.path),
            backend="cpu",
            dtype=dtype,
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
        for kind, by_engine in (("", self.samples.seconds), (", busy core", self.samples.busy)):
            for engine, by_workload in by_engine.items():
                for workload, seconds in by_workload.items():
                    rates = [WORKLOADS[workload].num_tokens / spent for spent in seconds]
                    yield Figure.of(f"{engine} {workload}{kind}", "tokens/s", rates)
        for workload, seconds in self.samples.seconds[PYVT].items():
            ratios = self.samples.ratios(workload)
            if ratios:
                yield Figure.of(f"ratio {workload}", "x", ratios)
            share = share_of_limit(WORKLOADS[workload], self.cost, seconds, self.samples.limits)
            if share is not None:
                yield Figure.of(f"share of limit {workload}", "", [share])
        for engine, size in self.samples.resident_bytes.items():
            yield Figure.of(f"{engine} resident", "MB", [size / 1e6])
        if self.samples.limits:
            yield Figure.of("read limit", "GB/s", [x.read for x in self.samples.limits])
            for loop in self.samples.limits[0].loops:
                rates = [x.loops[loop] for x in self.samples.limits]
                yield Figure.of(f"{loop} limit", "GOP/s", rates)


def _aim(target: Target | None) -> str:
    if target is None:
        return ""
    parts = [f"{target.aim:g}"] if target.aim is not None else []
    parts += [f"{target.aim_share:.0%}"] if target.aim_share is not None else []
    return " ".join(parts)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"
