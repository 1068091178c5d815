"""What the server costs over its engine, on loopback. Prints one table.

    python -m benchmarks.bench_server [--model MODEL] [--quick]

1. CPU of the server's process for each streamed token over an engine that costs nothing, less the
   CPU of that engine read without HTTP; 1, 8 and 32 streams. 32 are held to 40 µs.
2. CPU of a whole answer and of a stream of as many tokens; and of a handler beside ``/version``,
   whose answer is there already.
3. A client that reads 32 events slowly: what others see, and from a client's leaving to the abort.
4. Resident memory before and after a thousand requests.
5. With ``--model``: p99 of the time between two tokens over HTTP, against the engine alone in the
   same run, held to 1.2 x.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.lines import Line
from benchmarks.null_engine import null_llm, null_state
from pyvt.sampling_params import SamplingParams
from pyvt.server.run import UnsignalledServer, listen, url_of, uvicorn_config

CHAT = {"messages": [{"role": "user", "content": "Hello there"}], "ignore_eos": True}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
STREAMS = (1, 8, 32)


class Serving:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str] | None, url: str) -> None:
        self.process = process
        self.url = url
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0

    @property
    def cpu_s(self) -> float:
        """CPU of the process so far."""
        assert self.process is not None, "it is a process of its own"
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    @property
    def rss_mb(self) -> float:
        """Resident memory."""
        assert self.process is not None, "it is a process of its own"
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (kib,) = [line.split()[1] for line in lines if line.startswith("VmRSS")]
        return int(kib) / 1024

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        read: Callable[[bytes], Any] | None = None,
    ) -> bytes:
        """Send a request on a connection of its own; return all of the answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        parts = []
        try:
            while part := await reader.read(1 << 16):
                parts.append(part)
                if read is not None and await read(part):
                    break
        finally:
            writer.close()
            with suppress(OSError):  # the server may have closed it first
                await writer.wait_closed()
        return b"".join(parts)

    async def chat(self, num_tokens: int, *, is_stream: bool, **more: Any) -> bytes:
        """Return an answer of so many tokens."""
        body = {**CHAT, "max_tokens": num_tokens, "stream": is_stream}
        return await self.ask("POST", "/v1/chat/completions", body, **more)


@contextmanager
def serving(*command: str) -> Iterator[Serving]:
    """Start a server that prints its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    url = next(word for line in process.stdout for word in line.split() if word.startswith("http"))
    try:
        yield Serving(process, url)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def engine_cpu_us(num_streams: int, num_tokens: int) -> float:
    """Return the CPU of a token of the null engine, read by tasks without HTTP."""

    async def run() -> float:
        llm = null_llm(0.004)
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)

        async def read() -> None:
            async with llm.generate("Hello there", params) as stream:
                async for _ in stream:
                    pass

        start_s = time.process_time()
        await asyncio.gather(*(read() for _ in range(num_streams)))
        spent_s = time.process_time() - start_s
        await llm.shutdown()
        return spent_s

    return asyncio.run(run()) / (num_streams * num_tokens) * 1e6


async def streamed_cpu_us(server: Serving, num_streams: int, num_tokens: int) -> float:
    """Return the CPU of the server for a streamed token."""
    before_s = server.cpu_s
    answers = await asyncio.gather(
        *(server.chat(num_tokens, is_stream=True) for _ in range(num_streams))
    )
    spent_s = server.cpu_s - before_s
    assert all(answer.count(b"data: ") == num_tokens + 3 for answer in answers)
    return spent_s / (num_streams * num_tokens) * 1e6


def overhead(num_tokens: int, repeats: int) -> Iterator[Line]:
    """Yield the CPU of a streamed token beyond the engine's."""
    with serving("benchmarks.null_engine") as server:
        asyncio.run(server.chat(50, is_stream=True))
        for num_streams in STREAMS:
            # The system counts CPU in ticks of 10 ms: few streams need many tokens.
            num = num_tokens * 32 // num_streams if num_streams > 1 else num_tokens * 4
            over = [
                asyncio.run(streamed_cpu_us(server, num_streams, num))
                - engine_cpu_us(num_streams, num)
                for _ in range(repeats)
            ]
            limit = 40.0 if num_streams == 32 else None
            name = f"CPU of a streamed token beyond the engine's, {num_streams} streams"
            yield Line(name, statistics.median(over), "us", limit=limit)


def whole_answers(count: int) -> Iterator[Line]:
    """Yield the CPU of answers: prebuilt, whole, streamed."""

    async def cpu_us(server: Serving, ask: Callable[[], Any]) -> float:
        before_s = server.cpu_s
        for _ in range(count // 8):
            await asyncio.gather(*(ask() for _ in range(8)))
        return (server.cpu_s - before_s) / (count // 8 * 8) * 1e6

    with serving("benchmarks.null_engine", "--step-ms", "0.1") as server:
        asyncio.run(server.chat(5, is_stream=True))
        prebuilt = asyncio.run(cpu_us(server, lambda: server.ask("GET", "/version")))
        one = asyncio.run(cpu_us(server, lambda: server.chat(1, is_stream=False)))
        whole = asyncio.run(cpu_us(server, lambda: server.chat(64, is_stream=False)))
        stream = asyncio.run(cpu_us(server, lambda: server.chat(64, is_stream=True)))
    yield Line("CPU of an answer that is there already", prebuilt, "us")
    yield Line("CPU of a chat of one token", one, "us")
    yield Line("chat of one token, of an answer that is there", one / prebuilt, "x")
    yield Line("CPU of 64 tokens as JSON", whole, "us")
    yield Line("CPU of 64 tokens as events", stream, "us")
    yield Line("events, of JSON", stream / whole, "x")


def slow_clients(repeats: int) -> Iterator[Line]:
    """Yield what a slow client costs others, and how soon one that leaves is let go of."""

    async def run(server: Serving) -> tuple[float, float]:
        async def slowly(part: bytes) -> bool:
            await asyncio.sleep(0.05)
            return False

        async def fast() -> float:
            start_s = time.perf_counter()
            await asyncio.gather(*(server.chat(100, is_stream=True) for _ in range(8)))
            return time.perf_counter() - start_s

        alone = await fast()
        slow = asyncio.ensure_future(server.chat(32, is_stream=True, read=slowly))
        beside = await fast()
        await slow
        return alone, beside

    with serving("benchmarks.null_engine") as server:
        alone, beside = asyncio.run(run(server))
    left = asyncio.run(leaves(repeats))
    yield Line("8 streams beside a slow reader of 32 events, of alone", beside / alone, "x")
    yield Line("from a client's leaving to the abort, median", statistics.median(left), "ms")
    yield Line("from a client's leaving to the abort, longest", max(left), "ms", limit=1000.0)


async def leaves(repeats: int) -> list[float]:
    """Leave streams after their first chunk; return the milliseconds until each was aborted."""
    llm = null_llm(0.004)
    state = null_state(llm)
    sock = listen(state.config)
    running = UnsignalledServer(uvicorn_config(state))
    serve = asyncio.ensure_future(running.serve(sockets=[sock]))
    server = Serving(None, url_of(state.config, sock))

    async def first(part: bytes) -> bool:
        return b"word" in part

    found = []
    for _ in range(repeats):
        await server.chat(100_000, is_stream=True, read=first)
        start_s = time.perf_counter()
        while llm.num_unfinished_requests:
            await asyncio.sleep(0)
        found.append((time.perf_counter() - start_s) * 1000)
    running.should_exit = True
    await serve
    await llm.shutdown()
    return found


def memory(num_requests: int) -> Iterator[Line]:
    """Yield resident memory before and after many requests."""

    async def run(server: Serving, count: int) -> None:
        for _ in range(count // 16):
            await asyncio.gather(*(server.chat(4, is_stream=True) for _ in range(16)))

    with serving("benchmarks.null_engine", "--step-ms", "0.1") as server:
        asyncio.run(run(server, 320))
        before = server.rss_mb
        asyncio.run(run(server, num_requests))
        after = server.rss_mb
    yield Line("resident memory", before, "MB")
    yield Line(
        f"resident memory after {num_requests} more requests, of before", after / before, "x"
    )


def inter_token(model: str, repeats: int, num_tokens: int) -> Iterator[Line]:
    """Yield p99 of the time between two tokens, over HTTP and of the engine alone."""
    command = ["pyvt", "bench", "latency", "-m", model, "--json", "--num-prompts", "8"]
    load = ["--concurrency", "8", "--input-len", "32", "--output-len", str(num_tokens)]

    def figure(args: Sequence[str]) -> float:
        done = subprocess.run(
            [sys.executable, "-m", *args], check=True, capture_output=True, text=True
        )
        (record,) = json.loads(done.stdout)
        (value,) = [f["median"] for f in record["figures"] if f["name"] == "p99_itl_ms"]
        return float(value)

    alone, over = [], []
    with serving("pyvt", "serve", model, "--port", "0", "--disable-uvicorn-access-log") as server:
        asyncio.run(server.chat(8, is_stream=True))
        for _ in range(repeats):
            alone.append(figure([*command, *load]))
            asked = ["pyvt", "bench", "serve", "--url", server.url, "--json", "--num-prompts", "8"]
            over.append(figure([*asked, *load]))
    yield Line("p99 between two tokens, engine alone, 8 clients", statistics.median(alone), "ms")
    yield Line("p99 between two tokens, over HTTP, 8 clients", statistics.median(over), "ms")
    ratios = [b / a for a, b in zip(alone, over, strict=True)]
    yield Line("over HTTP, of the engine alone: p99", statistics.median(ratios), "x", limit=1.2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="alias or path of a real model, for the last section")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    num_tokens, repeats = (50, 1) if args.quick else (200, 3)
    sections = [overhead(num_tokens, repeats), whole_answers(64 if args.quick else 400)]
    sections += [slow_clients(3 if args.quick else 10), memory(160 if args.quick else 1600)]
    if args.model is not None:
        sections.append(inter_token(args.model, repeats, 32 if args.quick else 64))
    for section in sections:
        for line in section:
            print(line.text(), flush=True)


if __name__ == "__main__":
    main()
