"""How many cores this process may use: its affinity, and the quotas of its control groups.

1. Version 2: ``cpu.max`` of the process's group and of those above it, ``quota period`` or ``max``.
2. Version 1: ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``; a quota of −1 is none.

``csrc/cpu/usable_cores.cpp`` is the same for the pool of the native backend.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def num_usable_cores() -> int:
    """Return the cores that this process may use, at least one."""
    quota = cpu_quota()
    num_bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return num_bound if quota is None else max(1, min(num_bound, math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the least quota in cores, None where none is set; ``root`` is that of the files."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    groups = root / "sys/fs/cgroup"
    for line in _words(root / "proc/self/cgroup", "\n"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = (groups, groups / "unified")
        elif "cpu" in controllers.split(","):
            mounts = (groups / "cpu", groups / "cpu,cpuacct")
        else:
            continue
        for mount in mounts:
            yield from _quotas_up(mount, path)


def _quotas_up(mount: Path, path: str) -> Iterator[float]:
    """Yield the quota of a group and of those above it; a container may not see its own path."""
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
            return


def _words(path: Path, separator: str | None = None) -> list[str]:
    """Return what a file holds between separators, nothing where it cannot be read."""
    try:
        return path.read_text().strip().split(separator)
    except OSError:
        return []
