"""Free memory: system and control groups, each of which may say nothing or nonsense."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pyvt.tensor import memory
from pyvt.tensor.memory import available_host_bytes, trim_heap

MIB = 2**20
NO_LIMIT = str(2**63 - 4096)


def fake_root(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"
LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax data size  {}  unlimited  bytes\n"
CASES = [
    pytest.param({}, 2048, id="nothing-known"),
    pytest.param({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096 kB\n"}, 4, id="system"),
    pytest.param({"proc/meminfo": "MemAvailable: 0 kB\n"}, 2048, id="system-says-zero"),
    pytest.param(
        {
            "proc/meminfo": f"MemAvailable: {64 * 1024} kB\n",
            "proc/self/limits": LIMITS.format(50 * MIB),
            "proc/self/status": f"Name:\tpyvt\nVmData:\t{20 * 1024} kB\n",
        },
        30,
        id="limit-of-the-process",
    ),
    pytest.param(
        {
            "proc/meminfo": f"MemAvailable: {64 * 1024} kB\n",
            "proc/self/limits": LIMITS.format("unlimited"),
            "proc/self/status": "VmData:\t1 kB\n",
        },
        64,
        id="process-without-a-limit",
    ),
    pytest.param(
        {
            "proc/meminfo": "MemAvailable: 0 kB\n",
            "proc/self/cgroup": "0::/a/b\n",
            f"{V2}/a/b/memory.max": f"{512 * MIB}\n",
            f"{V2}/a/b/memory.current": f"{112 * MIB}\n",
        },
        400,
        id="zero-and-a-limit",
    ),
    pytest.param(
        {
            "proc/meminfo": "MemAvailable: 999999999 kB\n",
            "proc/self/cgroup": "0::/a/b\n",
            f"{V2}/a/b/memory.max": "max\n",
            f"{V2}/a/b/memory.current": f"{MIB}\n",
            f"{V2}/a/memory.max": f"{512 * MIB}\n",
            f"{V2}/a/memory.current": f"{300 * MIB}\n",
            f"{V2}/a/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
        },
        312,
        id="limit-of-the-parent-less-cached-files",
    ),
    pytest.param(
        {
            "proc/meminfo": f"MemAvailable: {64 * 1024} kB\n",
            "proc/self/cgroup": "4:cpu,memory:/job\n0::/\n",
            f"{V1}/job/memory.limit_in_bytes": NO_LIMIT,
            f"{V1}/job/memory.usage_in_bytes": f"{MIB}",
        },
        64,
        id="version-1-without-a-limit",
    ),
    pytest.param(
        {
            "proc/self/cgroup": "4:memory:/not/visible\n",
            f"{V1}/memory.limit_in_bytes": f"{100 * MIB}",
            f"{V1}/memory.usage_in_bytes": f"{150 * MIB}",
            f"{V1}/memory.stat": f"total_inactive_file {80 * MIB}\n",
        },
        30,
        id="version-1-in-a-container",
    ),
    pytest.param(
        {
            "proc/self/cgroup": "0::/\n",
            f"{V2}/memory.max": f"{MIB}",
            f"{V2}/memory.current": f"{9 * MIB}",
        },
        0,
        id="over-the-limit",
    ),
]


@pytest.mark.parametrize(("files", "num_mib"), CASES)
def test_available_host_bytes(tmp_path: Path, files: dict[str, str], num_mib: int) -> None:
    assert available_host_bytes(fake_root(tmp_path, files)) == num_mib * MIB


def test_available_host_bytes_of_this_machine_is_sane() -> None:
    assert 16 * MIB < available_host_bytes() < 2**50


@pytest.mark.parametrize("names", [("malloc_trim",), ()])
def test_trim_asks_the_c_library_that_can(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    asked: list[int] = []
    library = SimpleNamespace(**{name: lambda pad: asked.append(pad.value) for name in names})
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)

    trim_heap()

    assert asked == [0] * len(names)
