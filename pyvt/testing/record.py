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
from dataclasses import asdict, dataclass, field, replace
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
class Fallen:
    """A ratio or share that is worse than in the record before, of that ``commit``."""

    name: str
    before: float
    now: float
    commit: str


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
    several workloads the lengths are those of the largest. ``fallen`` is filled by
    ``write_record``.
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
    fallen: tuple[Fallen, ...] = ()
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
        data["fallen"] = tuple(Fallen(**fallen) for fallen in data.get("fallen", ()))
        return cls(**data)


LOW = "x (low)"  # the unit of a ratio that is better when it is less
# Units of figures that can be compared with those of another run, and whether more is better.
RATIOS = {"x": True, "": True, LOW: False}
# What a median of several samples, and a single one, may move by without meaning anything.
_SLACK, _SINGLE_SLACK = 0.05, 0.2


def fallen_figures(before: RunRecord, now: RunRecord) -> tuple[Fallen, ...]:
    """Return the ratios and shares that are worse by more than both records vary.

    Times and rates are left out, for they move with the machine; so are records of two machines.
    """
    if (before.machine.cpu, before.threads) != (now.machine.cpu, now.threads):
        return ()
    earlier = {figure.name: figure for figure in before.figures}
    found = []
    for figure in now.figures:
        old = earlier.get(figure.name)
        if old is None or figure.unit not in RATIOS or old.unit != figure.unit:
            continue
        loss = old.median - figure.median if RATIOS[figure.unit] else figure.median - old.median
        if loss > _slack(old) + _slack(figure):
            found.append(
                Fallen(name=figure.name, before=old.median, now=figure.median, commit=before.commit)
            )
    return tuple(found)


def _slack(figure: Figure) -> float:
    share = _SLACK if figure.n > 1 else _SINGLE_SLACK
    return max(figure.spread, share * abs(figure.median))


def write_record(folder: Path, name: str, record: RunRecord) -> RunRecord:
    """Write ``<name>.json`` with what fell since the record that lies there; return what it has.

    Raises ValueError or TypeError where what lies there is no record.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    if path.is_file():
        before = RunRecord.from_json(path.read_text())
        record = replace(record, fallen=fallen_figures(before, record))
    path.write_text(record.to_json() + "\n")
    return record


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
