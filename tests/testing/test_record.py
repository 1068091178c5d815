"""The run record: figures, and the way to a file and back."""

from pathlib import Path

from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine


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
