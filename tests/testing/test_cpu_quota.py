"""The quota of a control group, version 1 and 2."""

from pathlib import Path

import pytest

from pyvt.testing.cpu_quota import cpu_quota


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
