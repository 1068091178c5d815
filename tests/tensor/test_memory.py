"""The estimate of free memory, over files written by the test."""

from pathlib import Path

import pytest

from pyvt.tensor import memory

MIB = 1 << 20


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 512 MiB free and no control groups."""
    (tmp_path / "meminfo").write_text("MemTotal: 999999 kB\nMemAvailable: 524288 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "v2")
    monkeypatch.setattr(memory, "_CGROUP_V1", tmp_path / "v1")
    return tmp_path


def test_without_a_group_the_system_decides(system: Path) -> None:
    assert memory.available_host_bytes() == 512 * MIB


@pytest.mark.parametrize(
    ("folder", "limit", "usage"),
    [
        pytest.param("v2", "memory.max", "memory.current", id="v2"),
        pytest.param("v1", "memory.limit_in_bytes", "memory.usage_in_bytes", id="v1"),
    ],
)
def test_a_tighter_group_decides(system: Path, folder: str, limit: str, usage: str) -> None:
    (system / folder).mkdir()
    (system / folder / limit).write_text(f"{300 * MIB}\n")
    (system / folder / usage).write_text(f"{100 * MIB}\n")

    assert memory.available_host_bytes() == 200 * MIB


def test_a_group_without_a_limit_does_not_count(system: Path) -> None:
    (system / "v2").mkdir()
    (system / "v2" / "memory.max").write_text("max\n")
    (system / "v2" / "memory.current").write_text("5\n")

    assert memory.available_host_bytes() == 512 * MIB


def test_a_silent_system_is_taken_to_have_two_gib(system: Path) -> None:
    (system / "meminfo").unlink()

    assert memory.available_host_bytes() == 2048 * MIB
