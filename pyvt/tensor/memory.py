"""How much host memory this process may still take; giving freed memory back.

What it may take is the least of:

1. ``MemAvailable`` of ``/proc/meminfo``; 0 or nothing there counts as unknown.
2. The room in each control group from the process's own up to the root, version 1 or 2: its limit
   less its usage. Cached file pages that nobody maps can be dropped, so they are no usage.
3. The room below the limits of the process's address space and data segment (``ulimit -v``,
   ``-d``). A mapped file is address space, but no data.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_FALLBACK_BYTES = 2 << 30
# The files of limit and usage in a group, and the line of memory.stat that counts such pages.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# Limits of the process, and the lines of its status that count what they limit.
_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process may still take, in bytes.

    Where the system says nothing, 2 GiB are assumed. ``root`` is the root of the file system.
    """
    known = [
        *_available_in_system(root),
        *_available_in_groups(root),
        *_available_to_process(root),
    ]
    return min(known, default=_FALLBACK_BYTES)


def _available_in_system(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            if available > 0:
                yield available


def _available_in_groups(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for mount in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"):
                yield from _rooms(mount, path, _VERSION_2)
        elif "memory" in controllers.split(","):
            yield from _rooms(root / "sys/fs/cgroup/memory", path, _VERSION_1)


def _available_to_process(root: Path) -> Iterator[int]:
    limits = _lines(root / "proc/self/limits")
    used = dict(line.split(":", 1) for line in _lines(root / "proc/self/status") if ":" in line)
    for name, counter in _LIMITS.items():
        soft = next((line[len(name) :].split()[0] for line in limits if line.startswith(name)), "")
        if soft.isdigit() and counter in used:
            yield max(0, int(soft) - int(used[counter].split()[0]) * 1024)


def _rooms(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Yield the room of a group and of those above it; a container may not see its own path."""
    limit_name, usage_name, counter = names
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None:
            stat = dict(line.split() for line in _lines(group / "memory.stat"))
            yield max(0, limit - max(0, usage - int(stat.get(counter, 0))))
        if group == mount:
            return


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file, None where it cannot be read or says ``max``."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def trim_heap() -> None:
    """Give memory that was freed back to the system, where the C library can (glibc).

    Called once after loading, which takes and frees many small objects.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))
