"""The page of measured speed: what a record shows, and what is said to be missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from pyvt.testing import docs, docs_loads
from pyvt.testing import docs_performance as performance
from pyvt.testing.record import LOW, Fallen
from tests.testing.performance_records import MODEL, OPS, PEERS, record_of


def test_peers_row_has_the_target_and_tells_a_miss() -> None:
    (row,) = performance.peers_rows(PEERS)

    assert row == (MODEL, "decode@128", "90.0", "60.0", "1.50 (missed)", "0.00", "1.6", "", "80%")


def test_busy_and_memory_rows() -> None:
    assert list(performance.busy_rows(PEERS)) == [(MODEL, "pyvt decode@128", "50%", "45%")]
    assert [row[1:] for row in performance.memory_rows(PEERS)] == [
        ("pyvt", "300", "0.94", "<= 1"),
        ("llama.cpp", "320", "", ""),
    ]
    fat = record_of(("pyvt resident", "MB", 400.0), ("llama.cpp resident", "MB", 320.0))
    assert next(performance.memory_rows(fat))[3] == "1.25 (missed)"


def test_missed_target_has_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(performance.NOTES, (MODEL, "decode@128"), "memory bound")

    rows = list(performance.notes_rows(PEERS))

    assert rows == [(MODEL, "decode@128", "1.50 of 1.6", "memory bound")]
    assert MODEL not in performance.missing_models({MODEL: PEERS})


def test_aim_that_is_not_reached_is_told_with_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(performance.NOTES, (MODEL, "prefill 256"), "pipes")
    record = record_of(("ratio prefill 256", "x", 4.5), ("share of limit prefill 256", "", 0.5))

    assert list(performance.notes_rows(record)) == [
        (MODEL, "prefill 256", "aim: 4.50 of 5; aim: 50% of 60%", "pipes")
    ]


def test_rows_of_loads_and_steps_tell_a_miss() -> None:
    load = record_of(
        *(("file", "MB", 98.0), ("read", "ms", 20.0), ("load", "ms", 50.0)),
        *(("resident", "MB", 240.0), ("allowed", "MB", 250.0)),
        *((docs_loads.LOAD, LOW, 2.5), (docs_loads.MEMORY, LOW, 0.96)),
    )
    step = record_of((f"{docs_loads.OUTSIDE} 128", "of a step", 0.07))

    assert list(docs_loads.load_rows(load)) == [
        (MODEL, "98", "20", "50", "2.50 (missed)", "<= 2", "240", "250", "96%", "<= 100%")
    ]
    assert list(docs_loads.step_rows(step)) == [(MODEL, "128", "7.0%", "0.0%", "< 8%")]


def test_ops_and_offline_rows() -> None:
    timed = record_of(
        ("relu M=1", "µs", 2.0),
        ("relu M=1: memory", "GB/s", 4.0),
        ("relu M=1: share of read", "", 0.5),
    )
    offline = record_of(("batch 4", "tokens/s", 7.0), ("batch 4: ratio to the reference", "x", 3.0))

    assert list(performance.ops_rows(timed)) == [
        ("relu M=1", "native", "2.0", "4.0", "", "50%", "", "")
    ]
    assert list(performance.offline_rows(offline)) == [
        (MODEL, "batch 4", "7.0", "0.0", "", "", "3.0")
    ]


def test_page_of_records_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "peers-smollm2-135m.json").write_text(PEERS.to_json())
    other = replace(PEERS, model="other", fallen=(Fallen(name="r", before=2, now=1, commit="c"),))
    (folder / "peers-other.json").write_text(other.to_json())

    text = docs.performance_page(tmp_path)

    assert "| smollm2-135m | decode@128 | 90.0 |" in text
    assert "| other | decode@128 | 90.0 | 60.0 | 1.50 |" in text
    assert "Not measured yet: `shape:qwen3-0.6b:q8_0`" in text
    assert "| other | r | 2.00 | 1.00 | c |" in text
    assert "performance.svg" not in text


def test_drawn_figures_come_from_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "peers-m.json").write_text(PEERS.to_json())
    (folder / "ops.json").write_text(OPS.to_json())

    assert performance.op_shares(tmp_path) == {"M=1": [("q8_0", 0.9)], "M=256": [("q8_0", 0.5)]}
    assert performance.other_shares(tmp_path) == [("relu M=1", 0.4)]
    assert performance.peer_ratios(tmp_path) == [("smollm2-135m decode@128", 1.5, 1.6)]
