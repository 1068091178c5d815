"""The quota of a control group, version 1 and 2."""

import sys
from pathlib import Path

import pytest

from pyvt.tensor import cores
from pyvt.tensor.cores import cpu_quota


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param(
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"},
            None,
            id="version-2-none",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            },
            1.5,
            id="version-2-parent",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            2.0,
            id="version-1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="version-1-two-controllers",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/x\n",
                "sys/fs/cgroup/unified/x/cpu.max": "100000 100000\n",
            },
            1.0,
            id="version-2-beside-version-1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            None,
            id="version-1-none",
        ),
    ],
)
def test_quota(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert cpu_quota(_write(tmp_path, files)) == quota


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a process to cores here")
def test_a_quota_of_the_group_bounds_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(8)))

    found = []
    for quota in (None, 0.5, 2.5, 99.0):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        found.append(cores.num_usable_cores())

    assert found == [8, 1, 3, 8]
