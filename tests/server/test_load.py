"""Load on loopback: many streams at once, slow readers and clients that leave, for a while.

The short run is for every day; the long one (slow) holds 64 streams for a minute, and the memory of
the server to a slope of zero.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.engine.tiny_model import write_tiny_model

BODY = (
    b'{"messages": [{"role": "user", "content": "Hello"}], "stream": true, "max_tokens": 60, '
    b'"ignore_eos": true}'
)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


@dataclass
class Load:
    """What clients saw."""

    port: int
    end_s: float
    seen: Counter[str] = field(default_factory=Counter)

    async def client(self, number: int) -> None:
        """Ask until the time is over: most read all, some slowly, some leave in the middle."""
        draw = random.Random(number)
        while time.monotonic() < self.end_s:
            kind = draw.choices(("reads", "slow", "leaves"), (8, 1, 1))[0]
            self.seen[kind] += 1
            await self.one(kind, draw)

    async def one(self, kind: str, draw: random.Random) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(REQUEST)
        data = b""
        try:
            while part := await reader.read(1 << 14 if kind == "reads" else 512):
                data += part
                if kind == "slow":
                    await asyncio.sleep(0.01)
                if kind == "leaves" and len(data) > draw.randrange(1, 4000):
                    return
        finally:
            writer.close()
        is_whole = data.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in data
        self.seen["whole" if is_whole and b'"error"' not in data else "broken"] += 1


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("VmRSS")]
    return int(kib) / 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of a tiny model in a process of its own, and its port."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    command = [sys.executable, "-m", "pyvt", "serve", str(model)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--disable-uvicorn-access-log", "--max-num-seqs", "64"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("try"):
            break
    (url,) = [line.split()[-1] for line in lines if line.startswith("url")]
    yield process, int(url.rpartition(":")[2])
    process.send_signal(signal.SIGTERM)
    with process.stderr:
        rest = process.stderr.read()
    assert process.wait(60) == 0
    assert "Traceback" not in rest
    assert "error" not in rest.lower()


async def run(process: subprocess.Popen[str], port: int, streams: int, seconds: float) -> Load:
    load = Load(port, time.monotonic() + seconds)
    await asyncio.gather(*(load.client(number) for number in range(streams)))
    return load


def check(load: Load) -> None:
    assert load.seen["broken"] == 0, load.seen
    assert load.seen["whole"] == load.seen["reads"] + load.seen["slow"]
    assert load.seen["leaves"] > 0


def num_running(port: int) -> float:
    """Return how many requests run, as soon as none does or in a minute."""

    async def metrics() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()

    end_s = time.monotonic() + 60
    while True:
        text = asyncio.run(metrics()).decode()
        (line,) = [li for li in text.split("\n") if li.startswith("pyvt:num_requests_running{")]
        if line.endswith(" 0.0") or time.monotonic() > end_s:
            return float(line.split()[1])


def test_short_load_breaks_nothing(server: tuple[subprocess.Popen[str], int]) -> None:
    load = asyncio.run(run(*server, streams=16, seconds=2.0))

    check(load)
    assert num_running(server[1]) == 0


@pytest.mark.slow
def test_64_streams_for_a_minute_without_an_error_or_growth(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = server
    asyncio.run(run(process, port, streams=64, seconds=10.0))  # caches and pools fill
    samples: list[tuple[float, float]] = []

    async def watched() -> Load:
        start_s = time.monotonic()
        loading = asyncio.ensure_future(run(process, port, streams=64, seconds=60.0))
        while not loading.done():
            samples.append((time.monotonic() - start_s, rss_mb(process.pid)))
            await asyncio.sleep(1.0)
        return await loading

    load = asyncio.run(watched())

    check(load)
    assert num_running(port) == 0
    times, sizes = np.array(samples).T
    slope = np.polyfit(times, sizes, 1)[0]
    # Less than a hundredth of the process in an hour's worth of requests would not be seen here.
    assert slope * 60 < 0.01 * sizes[0], f"{slope * 60:.2f} MB a minute of {sizes[0]:.0f} MB"
