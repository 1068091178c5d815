"""The threads of the native backend: how many, at rest, across fork and at exit."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt import backends

pytestmark = [
    pytest.mark.native,
]
if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

NUM_CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    yield
    _native.set_num_threads(0)


def _sum_rows(x: Any) -> Any:
    """A product that is cut over threads."""
    out = np.empty((len(x), 512), np.float32)
    _native.linear(out, x, np.ones((512, x.shape[1]), np.float32), None)
    return out


@pytest.fixture(scope="module")
def x() -> Any:
    return np.random.default_rng(0).standard_normal((8, 2048)).astype(np.float32)


def test_results_do_not_depend_on_the_number_of_threads(x: Any) -> None:
    _native.set_num_threads(1)
    want = _sum_rows(x)

    for count in (2, 3, 16, 2):
        _native.set_num_threads(count)
        for _ in range(20):
            np.testing.assert_array_equal(_sum_rows(x), want)


def test_callers_on_several_threads_take_turns(x: Any) -> None:
    _native.set_num_threads(3)
    want, wrong = _sum_rows(x), []

    def call() -> None:
        wrong.extend(1 for _ in range(30) if not np.array_equal(_sum_rows(x), want))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert wrong == []


def test_pool_starts_again_after_shutdown(x: Any) -> None:
    _native.set_num_threads(2)
    want = _sum_rows(x)

    _native.shutdown_threads()
    _native.shutdown_threads()

    np.testing.assert_array_equal(_sum_rows(x), want)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/", {}, NUM_CORES, id="no limit"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, NUM_CORES, id="max"),
        pytest.param("0::/", {"cpu.max": "100000 100000"}, 1, id="one core"),
        pytest.param("0::/", {"cpu.max": "20000 100000"}, 1, id="part of a core"),
        pytest.param("0::/a/b", {"a/cpu.max": "100000 100000"}, 1, id="group above"),
        pytest.param("0::/a", {"b/cpu.max": "100000 100000"}, NUM_CORES, id="other group"),
        pytest.param("0::/gone", {"cpu.max": "100000 100000"}, 1, id="own path not seen"),
        pytest.param(
            "4:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "90000", "cpu,cpuacct/a/cpu.cfs_period_us": "90000"},
            1,
            id="version 1",
        ),
        pytest.param(
            "4:cpu:/a",
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
            NUM_CORES,
            id="version 1 without limit",
        ),
        pytest.param("nonsense\n:\n3:x", {"cpu.max": "many few"}, NUM_CORES, id="nonsense"),
    ],
)
def test_cores_are_the_least_of_affinity_and_quotas(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    assert _native.num_usable_cores(str(tmp_path)) == expected


def test_affinity_of_one_core_gives_one_thread() -> None:
    core = min(os.sched_getaffinity(0))
    lines = [
        f"import os; os.sched_setaffinity(0, {{{core}}})",
        "from pyvt.backends.cpu import _native",
        "print(_native.num_threads())",
    ]

    assert _run(lines) == ["1"]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_child_of_fork_computes_with_threads_of_its_own() -> None:
    lines = [
        "import os, numpy as np",
        "from pyvt.backends.cpu import _native",
        "_native.set_num_threads(3)",
        "x, w = np.ones((4, 2048), np.float32), np.ones((512, 2048), np.float32)",
        "def total():",
        "    out = np.empty((4, 512), np.float32); _native.linear(out, x, w, None)",
        "    return int(out.sum())",
        "def tell(): os.write(1, b'%d\\n' % total())",  # in one piece, whoever writes beside
        "tell()",
        "child = os.fork()",
        "tell()",
        "if child == 0: os._exit(0)",
        "assert os.waitpid(child, 0)[1] == 0",
    ]

    assert _run(lines) == [str(4 * 512 * 2048)] * 3


def test_interpreter_ends_while_a_thread_computes() -> None:
    lines = [
        "import threading, numpy as np, time",
        "from pyvt import backends; backends.load('cpu')",
        "from pyvt.backends.cpu import _native",
        "_native.set_num_threads(3)",
        "x, w = np.ones((4, 2048), np.float32), np.ones((512, 2048), np.float32)",
        "out = np.empty((4, 512), np.float32)",
        "started = threading.Event()",
        "def work():",
        "    while True: _native.linear(out, x, w, None); started.set()",
        "threading.Thread(target=work, daemon=True).start()",
        "started.wait(); print('end')",
    ]

    assert _run(lines) == ["end"]


def test_workers_sleep_when_nothing_runs(x: Any) -> None:
    lines = [
        "import os, time, numpy as np",
        "from pyvt.backends.cpu import _native",
        "_native.set_num_threads(4)",
        "x, w = np.ones((4, 2048), np.float32), np.ones((512, 2048), np.float32)",
        "_native.linear(np.empty((4, 512), np.float32), x, w, None)",
        "main, deadline = os.getpid(), time.monotonic() + 20",
        "workers = [t for t in os.listdir('/proc/self/task') if int(t) != main]",
        "def state(t): return open(f'/proc/self/task/{t}/stat').read().rsplit(')', 1)[1][1]",
        "states = ['R']",
        "while 'R' in states and time.monotonic() < deadline:",
        "    states = [state(t) for t in workers]",
        "print(len(workers) >= 3, set(states))",
    ]

    assert _run(lines) == ["True", "{'S'}"]


def _run(lines: list[str]) -> list[str]:
    """Return what a script prints in a process of its own, which must end well and in time."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
