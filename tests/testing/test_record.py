"""The run record: figures, and the way to a file and back."""

from dataclasses import replace
from pathlib import Path

import pytest

from pyvt.testing.record import (
    LOW,
    Fallen,
    Figure,
    RunRecord,
    this_commit,
    this_machine,
    write_record,
)
from tests.testing.performance_records import record_of


def test_figure_of_samples_has_median_and_half_range() -> None:
    figure = Figure.of("decode", "tokens/s", [3.0, 1.0, 2.0, 10.0])

    assert (figure.n, figure.median, figure.spread) == (4, 2.5, 4.5)


def test_record_survives_json() -> None:
    record = RunRecord(
        command="pyvt bench",
        model="tiny",
        model_id="sha256:00",
        backend="numpy",
        dtype="f32",
        prompt_tokens=3,
        new_tokens=4,
        concurrency=1,
        threads=2,
        machine=this_machine(),
        commit="abc",
        features=("numpy",),
        figures=(Figure.of("ttft", "ms", [1.0]),),
    )

    assert RunRecord.from_json(record.to_json()) == record


def test_commit_outside_git_is_unknown(tmp_path: Path) -> None:
    assert this_commit(tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("unit", "before", "now", "is_worse"),
    [
        ("x", [1.9, 2.0, 2.1], [1.4, 1.5, 1.6], True),
        ("x", [1.9, 2.0, 2.1], [1.7, 1.9, 2.0], False),  # within what both vary by
        ("x", [1.0, 2.0, 3.0], [1.2, 1.5, 1.9], False),
        ("x", [1.4, 1.5, 1.6], [1.9, 2.0, 2.1], False),
        ("", [0.9], [0.8], False),  # a single sample says little
        ("", [0.9], [0.5], True),
        (LOW, [1.5, 1.5], [2.5, 2.5], True),
        (LOW, [2.5, 2.5], [1.5, 1.5], False),
        ("tokens/s", [100.0, 100.0], [50.0, 50.0], False),  # moves with the machine
    ],
)
def test_record_tells_what_fell_since_the_one_before(
    tmp_path: Path, unit: str, before: list[float], now: list[float], is_worse: bool
) -> None:
    first, second = (
        replace(record_of(), commit=commit, figures=(Figure.of("f", unit, samples),))
        for commit, samples in (("a", before), ("b", now))
    )

    assert write_record(tmp_path / "out", "m", first).fallen == ()
    written = write_record(tmp_path / "out", "m", second)

    medians = [record.figures[0].median for record in (first, second)]
    told = Fallen(name="f", before=medians[0], now=medians[1], commit="a")
    assert written.fallen == ((told,) if is_worse else ())
    assert RunRecord.from_json((tmp_path / "out" / "m.json").read_text()) == written


def test_records_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    here = replace(record_of(), figures=(Figure.of("f", "x", [2.0, 2.0]),))
    there = replace(
        here,
        machine=replace(here.machine, cpu="another"),
        figures=(Figure.of("f", "x", [1.0, 1.0]),),
    )

    write_record(tmp_path, "m", here)

    assert write_record(tmp_path, "m", there).fallen == ()
