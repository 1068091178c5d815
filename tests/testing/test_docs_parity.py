"""The evidence pages: honest labels, and a record for every op that has goldens."""

from pathlib import Path

from pyvt.testing.docs_parity import CAPABILITIES, LABELS, LABELS_THAT_RAN, measured
from pyvt.testing.golden import read_op_goldens


def test_labels_are_known(repo: Path) -> None:
    assert {c.label_in(repo) for c in CAPABILITIES} <= set(LABELS)


def test_row_that_did_not_run_has_no_figure(repo: Path) -> None:
    figures = {
        c.name: c.figure_in(repo)
        for c in CAPABILITIES
        if c.label_in(repo) not in LABELS_THAT_RAN and c.figure_in(repo)
    }

    assert figures == {}


def test_record_of_the_reference_has_every_op_and_dtype(repo: Path, goldens_root: Path) -> None:
    rows = measured(repo)["numpy"]["sections"]["ops"]["op_rows"]

    recorded = {(row["op"], row["dtype"]): row["num_goldens"] for row in rows}
    goldens = [(g.op, g.dtype) for g in read_op_goldens(goldens_root)]

    assert recorded == {key: goldens.count(key) for key in dict.fromkeys(goldens)}
    assert max(row["share_of_bound"] for row in rows) <= 1


def test_record_of_the_native_backend_has_every_section_and_op(
    repo: Path, goldens_root: Path
) -> None:
    sections = measured(repo)["cpu"]["sections"]

    rows = sections["ops"]["op_rows"]
    assert {row["op"] for row in rows} == {g.op for g in read_op_goldens(goldens_root)}
    assert max(row["share_of_bound"] for row in rows) <= 1
    assert [sections[name]["label"] for name in ("ops", "models", "lockstep", "text")] == [
        "PASS"
    ] * 4
