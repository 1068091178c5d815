"""How much host memory this process may still take."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")
_FALLBACK_BYTES = 2 << 30


def _number(path: Path) -> int | None:
    """Return the number in a file, None where it is absent or says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _available_in_system() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) * 1024 for words in found), None)


def _available_in_cgroup() -> int | None:
    for limit_path, usage_path in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP_V1 / "memory.limit_in_bytes", _CGROUP_V1 / "memory.usage_in_bytes"),
    ):
        limit, usage = _number(limit_path), _number(usage_path)
        if limit is not None and usage is not None:
            return max(limit - usage, 0)
    return None


def available_host_bytes() -> int:
    """Return the smaller of free system memory and room in the control group.

    Where the system says neither, 2 GiB are assumed.
    """
    known = [n for n in (_available_in_system(), _available_in_cgroup()) if n is not None]
    return min(known, default=_FALLBACK_BYTES)
