"""The server over an engine without a model, which ``bench_server`` measures."""

import asyncio

from benchmarks.bench_server import serving


def test_stream_of_the_null_engine_is_whole() -> None:
    with serving("benchmarks.null_engine") as server:
        answer = asyncio.run(server.chat(10, is_stream=True))

    # A chunk with the role, ten tokens, the end, and the mark of the stream's end.
    assert answer.count(b"data: ") == 13
