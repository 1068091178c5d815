"""The page of measured speed, ``docs/performance.md``, from the records in ``benchmarks/results``.

``pyvt bench … --out benchmarks/results`` writes the records: ``ops.json``, ``offline-<model>.json``
and ``peers-<model>.json``; those of loads and steps are in ``docs_loads``. What is missing is said
to be missing.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyvt.testing.bench_peers import BUSY_MUST, MODELS, PYVT, TARGETS, Target
from pyvt.testing.docs_loads import LOAD_HEADER, STEP_HEADER, load_rows, step_rows
from pyvt.testing.docs_missed import NOTES
from pyvt.testing.record import Figure, RunRecord

PEERS_HEADER = ("model", "workload", "pyvt", "best peer", "ratio", "±", "must", "aim", "of limit")
Row = tuple[str, ...]

MEMORY_MUST = 1.0  # resident memory over that of the leanest peer

# The cases of products that are drawn, a decode step and a prefill, and the limit of each.
ROWS = {"M=1": "read", "M=256": "peak"}


def records(root: Path, kind: str) -> dict[str, RunRecord]:
    """Return the records ``<kind>*.json`` by the name of their model."""
    found = {}
    for path in sorted((root / "benchmarks" / "results").glob(f"{kind}*.json")):
        record = RunRecord.from_json(path.read_text())
        found[record.model] = record
    return found


def figures(record: RunRecord) -> dict[str, Figure]:
    """Return the figures of a record by name."""
    return {figure.name: figure for figure in record.figures}


def peers_rows(record: RunRecord) -> Iterator[Row]:
    """Yield a row for each workload of a comparison, then memory and the busy neighbour."""
    found = figures(record)
    workloads = [name.removeprefix("ratio ") for name in found if name.startswith("ratio ")]
    for workload in workloads:
        target = next(
            (t for t in TARGETS if (t.model, t.workload) == (record.model, workload)), None
        )
        ratio, share = found[f"ratio {workload}"], found.get(f"share of limit {workload}")
        speeds = [f.median for n, f in found.items() if n.endswith(f" {workload}") and _is_peer(n)]
        yield (
            record.model,
            workload,
            f"{found[f'{PYVT} {workload}'].median:.1f}",
            f"{max(speeds):.1f}",
            _judged(ratio.median, target),
            f"{ratio.spread:.2f}",
            "" if target is None else f"{target.must:g}",
            _aim(target),
            "" if share is None else f"{share.median:.0%}",
        )


def _is_peer(name: str) -> bool:
    return not name.startswith((PYVT, "ratio ", "share "))


def _judged(ratio: float, target: Target | None) -> str:
    is_missed = target is not None and ratio < target.must
    return f"{ratio:.2f}" + (" (missed)" if is_missed else "")


def _aim(target: Target | None) -> str:
    if target is None:
        return ""
    parts = [f"{target.aim:g}"] if target.aim is not None else []
    parts += [f"{target.aim_share:.0%}"] if target.aim_share is not None else []
    return ", ".join(parts)


def busy_rows(record: RunRecord) -> Iterator[Row]:
    """Yield what each engine keeps of its speed beside a busy core."""
    found, suffix = figures(record), ", busy core"
    for name, figure in found.items():
        if name.endswith(suffix):
            quiet = found[name.removesuffix(suffix)]
            kept = figure.median / quiet.median
            must = f"{BUSY_MUST:.0%}" if name.startswith(PYVT) else ""
            yield (record.model, name.removesuffix(suffix), f"{kept:.0%}", must)


def memory_rows(record: RunRecord) -> Iterator[Row]:
    """Yield the resident memory of each engine; of pyvt its ratio to the leanest peer's too."""
    sizes = {
        name.removesuffix(" resident"): figure.median
        for name, figure in figures(record).items()
        if name.endswith(" resident")
    }
    peers = [size for engine, size in sizes.items() if engine != PYVT]
    for engine, size in sizes.items():
        ratio = size / min(peers) if engine == PYVT and peers else None
        is_missed = ratio is not None and ratio > MEMORY_MUST
        share = "" if ratio is None else f"{ratio:.2f}" + (" (missed)" if is_missed else "")
        yield (record.model, engine, f"{size:.0f}", share, "" if ratio is None else "<= 1")


def ops_rows(record: RunRecord) -> Iterator[Row]:
    """Yield a row for each op: microseconds, rates, shares and the ratio to the reference."""
    found = figures(record)
    for name, kernel in record.kernels.items():
        rates = [found.get(f"{name}: {kind}") for kind in ("memory", "products")]
        shares = [found.get(f"{name}: share of {kind}") for kind in ("read", "peak")]
        ratio = found.get(f"{name}: ratio to the reference")
        yield (
            name,
            kernel,
            f"{found[name].median:.1f}",
            *("" if rate is None else f"{rate.median:.1f}" for rate in rates),
            *("" if share is None else f"{share.median:.0%}" for share in shares),
            "" if ratio is None else f"{ratio.median:.1f}",
        )


def offline_rows(record: RunRecord) -> Iterator[Row]:
    """Yield a row for each workload of a model."""
    found = figures(record)
    for name, figure in found.items():
        if figure.unit != "tokens/s":
            continue
        shares = [found.get(f"{name}: share of {kind}") for kind in ("read", "peak")]
        ratio = found.get(f"{name}: ratio to the reference")
        yield (
            record.model,
            name,
            f"{figure.median:.1f}",
            f"{figure.spread:.1f}",
            *("" if share is None else f"{share.median:.0%}" for share in shares),
            "" if ratio is None else f"{ratio.median:.1f}",
        )


def machine_line(found: Sequence[RunRecord]) -> str:
    """Return where the records were taken, in a line."""
    lines = {
        f"{r.machine.cpu} ({r.machine.isa}), {r.threads} threads, commit {r.commit}" for r in found
    }
    return "; ".join(sorted(lines))


def notes_rows(record: RunRecord) -> Iterator[Row]:
    """Yield what misses its must or its aim, by how much, and the note on it."""
    found = figures(record)
    for target in TARGETS:
        ratio = found.get(f"ratio {target.workload}")
        if target.model != record.model or ratio is None:
            continue
        share = found.get(f"share of limit {target.workload}")
        missed = []
        if ratio.median < target.must:
            missed.append(f"{ratio.median:.2f} of {target.must:g}")
        if target.aim is not None and ratio.median < target.aim:
            missed.append(f"aim: {ratio.median:.2f} of {target.aim:g}")
        if target.aim_share is not None and share is not None and share.median < target.aim_share:
            missed.append(f"aim: {share.median:.0%} of {target.aim_share:.0%}")
        if missed:
            note = NOTES.get((target.model, target.workload), "–")
            yield (target.model, target.workload, "; ".join(missed), note)


def fallen_rows(record: RunRecord) -> Iterator[Row]:
    """Yield what is worse than in the record before."""
    for fallen in record.fallen:
        before, now = f"{fallen.before:.2f}", f"{fallen.now:.2f}"
        yield (record.model, fallen.name, before, now, fallen.commit)


def missing_models(found: dict[str, RunRecord]) -> list[str]:
    """Return the models with targets that have no record."""
    return [model for model in MODELS if model not in found]


def op_shares(root: Path) -> dict[str, list[tuple[str, float]]]:
    """Return for decode and prefill the share of the limit that products reach, by format."""
    found: dict[str, list[tuple[str, float]]] = {rows: [] for rows in ROWS}
    for record in records(root, "ops").values():
        by_name = figures(record)
        for name in record.kernels:
            op, _, case = name.partition(" ")
            rows = case.rpartition(" ")[2]
            share = by_name.get(f"{name}: share of {ROWS.get(rows, '')}")
            if op == "packed_linear" and share is not None:
                found[rows].append((case.partition(" ")[0], share.median))
    return found


def other_shares(root: Path) -> list[tuple[str, float]]:
    """Return for every other op the share of its nearer limit that its largest case reaches."""
    found: dict[str, tuple[str, float]] = {}
    for record in records(root, "ops").values():
        by_name = figures(record)
        for name in record.kernels:
            op, _, case = name.partition(" ")
            kinds = (by_name.get(f"{name}: share of {kind}") for kind in ("read", "peak"))
            shares = [share.median for share in kinds if share is not None]
            if op != "packed_linear" and shares:
                found[op] = (f"{op} {case}", max(shares))
    return list(found.values())


def peer_ratios(root: Path) -> list[tuple[str, float, float | None]]:
    """Return (workload, ratio, the ratio that it must have) of every comparison."""
    musts = {(target.model, target.workload): target.must for target in TARGETS}
    return [
        (
            f"{record.model.removeprefix('shape:')} {name.removeprefix('ratio ')}",
            figure.median,
            musts.get((record.model, name.removeprefix("ratio "))),
        )
        for record in records(root, "peers-").values()
        for name, figure in figures(record).items()
        if name.startswith("ratio ")
    ]


# Kinds of records: the beginnings of their names.
KINDS = ("peers-", "load-", "step-", "offline-", "ops")
# Sections of the page: title, header, kind of its records (None: all), rows of a record.
SECTIONS: tuple[tuple[str, Row, str | None, Callable[[RunRecord], Iterator[Row]]], ...] = (
    ("Beside other engines", PEERS_HEADER, "peers-", peers_rows),
    ("One core busy", ("model", "workload", "kept", "must"), "peers-", busy_rows),
    ("Resident memory", ("model", "engine", "MB", "ratio", "must"), "peers-", memory_rows),
    ("Loading", LOAD_HEADER, "load-", load_rows),
    ("Python around a decode step", STEP_HEADER, "step-", step_rows),
    (
        "Whole models",
        ("model", "workload", "tokens/s", "±", "of read", "of peak", "x reference"),
        "offline-",
        offline_rows,
    ),
    ("Missed", ("model", "workload", "by how much", "what bounds it"), "peers-", notes_rows),
    ("Fallen", ("model", "figure", "before", "now", "commit before"), None, fallen_rows),
    (
        "Ops",
        ("op and case", "kernel", "µs", "GB/s", "GFLOP/s", "of read", "of peak", "x reference"),
        "ops",
        ops_rows,
    ),
)
