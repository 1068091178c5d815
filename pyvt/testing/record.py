"""RunRecord: the one form of a measured figure, with all that is needed to take it again.

Every benchmark writes it; docs and results are made from it. A figure that has no record is not
quoted anywhere.
"""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyvt import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity: its unit, number of samples, median and spread (half the range)."""

    name: str
    unit: str
    n: int
    median: float
    spread: float

    @classmethod
    def of(cls, name: str, unit: str, samples: Sequence[float]) -> "Figure":
        """Return the figure of at least one sample."""
        assert samples, "a figure needs a sample"
        return cls(
            name=name,
            unit=unit,
            n=len(samples),
            median=statistics.median(samples),
            spread=(max(samples) - min(samples)) / 2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run took place. A field is None where the machine has no such thing."""

    cpu: str
    isa: str
    num_cpus: int
    memory_gib: float
    system: str
    python: str
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of a benchmark.

    ``model_id`` is the revision or the sha256 of the file; ``features`` are the build's backends,
    or the engines of a comparison; ``kernels`` names the backend that served each op that ran. Of
    several workloads the lengths are those of the largest.
    """

    command: str
    model: str
    model_id: str
    backend: str
    dtype: str
    prompt_tokens: int
    new_tokens: int
    concurrency: int
    threads: int
    machine: Machine
    commit: str
    features: tuple[str, ...]
    figures: tuple[Figure, ...]
    kernels: dict[str, str] = field(default_factory=dict)
    version: str = __version__
    taken_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """Return the record that ``to_json`` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["machine"] = Machine(**data["machine"])
        data["figures"] = tuple(Figure(**figure) for figure in data["figures"])
        data["features"] = tuple(data["features"])
        return cls(**data)


def _cpu_facts() -> tuple[str, str]:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    lines = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in text.splitlines())}
    flags = set(lines.get("flags", lines.get("Features", "")).split())
    known = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "asimddp", "i8mm")
    isa = "+".join(flag for flag in known if flag in flags) or platform.machine()
    return lines.get("model name", platform.processor() or platform.machine()), isa


def this_machine() -> Machine:
    """Return the machine that the process runs on."""
    cpu, isa = _cpu_facts()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=cpu,
        isa=isa,
        num_cpus=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def this_commit(folder: Path) -> str:
    """Return the commit of a checkout, with ``+`` when it has changes; ``unknown`` outside git."""
    run = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.strip() if run.returncode == 0 else "unknown"
