"""The picture of the records."""

from pathlib import Path

import pytest

from tests.testing.performance_records import OPS, PEERS

pytest.importorskip("matplotlib", reason="matplotlib is the extra `plot`")

from benchmarks import plot


def test_picture_is_the_same_each_time_and_small(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "peers-m.json").write_text(PEERS.to_json())
    (folder / "ops.json").write_text(OPS.to_json())

    for name in ("a.svg", "b.svg"):
        plot.draw(tmp_path, tmp_path / name)

    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "q8_0" in text
    assert "relu M=1" in text
    assert "smollm2-135m decode@128" in text
    assert len(text) < 100_000
