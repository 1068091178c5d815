"""The part of ``docs/performance.md`` on loads, memory and the Python around a decode step.

Records ``load-<model>.json`` and ``step-<model>.json`` of ``python -m benchmarks.bench_load`` and
``bench_step``.
"""

from collections.abc import Iterator

from pyvt.testing.record import Figure, RunRecord

LOAD, MEMORY = "load over reading once", "resident over allowed"
LOAD_MUST, MEMORY_MUST = 2.0, 1.0
OUTSIDE = "outside of the plan, context"  # and its number of tokens
OUTSIDE_AIM = 0.08

LOAD_HEADER = (
    *("model", "file MB", "read ms", "load ms", "x read", "must"),
    *("resident MB", "allowed MB", "share", "must"),
)
STEP_HEADER = ("model", "context", "outside of the plan", "±", "aim")
Row = tuple[str, ...]


def load_rows(record: RunRecord) -> Iterator[Row]:
    """Yield the row of a model: its load and its memory."""
    found = {figure.name: figure for figure in record.figures}
    amounts = {name: f"{found[name].median:.0f}" for name in ("file", "read", "load")}
    sizes = {name: f"{found[name].median:.0f}" for name in ("resident", "allowed")}
    yield (
        record.model,
        *amounts.values(),
        _held(found[LOAD], LOAD_MUST, "{:.2f}"),
        f"<= {LOAD_MUST:g}",
        *sizes.values(),
        _held(found[MEMORY], MEMORY_MUST, "{:.0%}"),
        f"<= {MEMORY_MUST:.0%}",
    )


def _held(figure: Figure, must: float, form: str) -> str:
    return form.format(figure.median) + (" (missed)" if figure.median > must else "")


def step_rows(record: RunRecord) -> Iterator[Row]:
    """Yield for each context the share of a decode step that is not native code."""
    for figure in record.figures:
        if figure.name.startswith(OUTSIDE):
            context = figure.name.removeprefix(OUTSIDE).strip()
            share, aim = f"{figure.median:.1%}", f"< {OUTSIDE_AIM:.0%}"
            yield (record.model, context, share, f"{figure.spread:.1%}", aim)
