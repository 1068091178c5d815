"""How many cores a control group lets this process use.

1. Version 2: ``cpu.max`` of the process's group and of those above it, ``quota period`` or ``max``.
2. Version 1: ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``; a quota of −1 is none.
"""

from collections.abc import Iterator
from pathlib import Path


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the least quota in cores, None where none is set; ``root`` is that of the files."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for line in _words(root / "proc/self/cgroup", "\n"):
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:
            mount = root / "sys/fs/cgroup"
        elif "cpu" in names:
            mount = root / "sys/fs/cgroup/cpu"
        else:
            continue
        folder = mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            words = _words(group / "cpu.max")
            words = words or [
                *_words(group / "cpu.cfs_quota_us"),
                *_words(group / "cpu.cfs_period_us"),
            ]
            if len(words) == 2 and words[0].isdigit():
                yield int(words[0]) / int(words[1])
            if group == mount:
                break


def _words(path: Path, separator: str | None = None) -> list[str]:
    """Return what a file holds between separators, nothing where it cannot be read."""
    try:
        return path.read_text().strip().split(separator)
    except OSError:
        return []
