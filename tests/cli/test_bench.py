"""``pyvt bench``: tables, records, and what is refused."""

import json
from pathlib import Path

import pytest

from pyvt.cli.bench_output import command_line
from pyvt.cli.bench_table import show_table
from pyvt.testing.record import RunRecord
from tests.cli.conftest import RunCommand


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYVT_HOME of the test's own."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))


def test_bench_ops_prints_a_table_and_writes_a_record(
    run_command: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "records"

    result = run_command(
        *("bench", "ops", "rms_norm M=1", "--backend", "numpy", "--repeats", "1"),
        *("--no-reference", "--out", str(out)),
    )

    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split()[:4] == ["op", "case", "kernel", "µs"]
    assert [line.split()[0] for line in lines[1:]] == ["rms_norm", "fused_add_rms_norm"]
    record = RunRecord.from_json((out / "ops.json").read_text())
    assert record.backend == "numpy"
    assert record.kernels["rms_norm M=1"] == "numpy"


def test_bench_offline_of_a_tiny_shape_is_json(run_command: RunCommand) -> None:
    result = run_command(
        *("bench", "offline", "shape:tiny:q8_0", "--repeats", "1", "--no-reference"),
        *("--threads", "1", "--json"),
    )

    assert result.code == 0
    (record,) = json.loads(result.out)
    names = {figure["name"] for figure in record["figures"]}
    assert {"prefill 256", "decode@128", "batch 16", "resident"} <= names
    assert record["kernels"]["packed_linear" if "cpu" in record["features"][0] else "linear"]


def test_bench_peers_without_peers_measures_pyvt_alone(run_command: RunCommand) -> None:
    result = run_command(
        *("bench", "peers", "shape:tiny:q8_0", "--only", "decode@128", "--repeats", "1"),
        *("--no-busy", "--threads", "1"),
    )

    assert result.code == 0
    assert [line.split()[1] for line in result.out.splitlines()] == [
        "workload",
        "decode@128",
        "resident",
    ]


def test_bench_of_an_unknown_shape_is_refused(run_command: RunCommand) -> None:
    result = run_command("bench", "offline", "shape:tiny:q9")

    assert result.code == 2
    assert "'q9' of 'shape:tiny:q9' is unknown" in result.err


def test_bench_table_puts_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name", "n"), [("a", "5"), ("long name", "10")])

    assert capsys.readouterr().out.splitlines() == [
        "name        n",
        "a           5",
        "long name  10",
    ]


def test_bench_peers_refuses_a_workload_that_is_none(run_command: RunCommand) -> None:
    result = run_command("bench", "peers", "shape:tiny:q8_0", "--only", "nothing", "--no-busy")

    assert result.code == 2
    assert "[bench] only: expected a part of one of" in result.err


def test_command_line_of_a_record_names_no_folder_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["pyvt", "bench", "peers", "shape:tiny:q8_0", "--llama-python", "/opt/x/bin/python"]
    monkeypatch.setattr("sys.argv", words)

    assert command_line() == ("pyvt bench peers shape:tiny:q8_0 --llama-python python")
