"""A program that opens bad model files and measures itself.

``python -m tests.weights.open_paths`` takes a JSON list of paths on stdin and prints one object:
the class of each path's error, the longest CPU time of one, and by how much peak memory grew.
"""

import json
import resource
import sys
import time
from pathlib import Path

from pyvt.errors import PyvtError
from pyvt.weights import open_model


def peak_rss_bytes() -> int:
    """Return the peak of this program's memory; ru_maxrss on Linux counts its parent's as well."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def main(paths: list[str]) -> None:
    """Open every path, which must fail, and print what it took."""
    before = peak_rss_bytes()
    errors, slowest_s = {}, 0.0
    for path in paths:
        start = time.process_time()
        try:
            open_model(path).close()
            errors[path] = "opened"
        except PyvtError as error:
            errors[path] = type(error).__name__
        slowest_s = max(slowest_s, time.process_time() - start)
    growth_bytes = peak_rss_bytes() - before
    report = {"errors": errors, "slowest_s": slowest_s, "growth_bytes": growth_bytes}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(json.load(sys.stdin))
