"""Unloading the model of a server that nobody asks: its memory is free until the next request.

1. A request that needs the model wakes the server and waits for the load; all of them share one.
   A stream gets comments meanwhile, see ``waking``.
2. The model goes when no request was handled for ``keep_alive_s``; a request that is being handled,
   a stream that is being read included, keeps it.
3. ``/ready`` stays ready: what is asked will be served.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pyvt.engine.async_llm import AsyncLLM
from pyvt.log import get_logger
from pyvt.server.state import ServerState
from pyvt.tensor.memory import trim_heap

log = get_logger(__name__)


@asynccontextmanager
async def awake(state: ServerState) -> "AsyncIterator[asyncio.Future[None] | None]":
    """Keep the model loaded, for a request that needs it; load it where it was unloaded.

    Yields the load that must be waited for, None for a model that is there. It fails with a
    ``PyvtError`` where the model cannot be loaded any more.
    """
    state.num_handled += 1
    try:
        if state.is_asleep and not state.is_draining and state.waking is None:
            assert state.load is not None, "only a server that can load falls asleep"
            state.waking = asyncio.ensure_future(_wake(state, state.load))
        yield state.waking
    finally:
        state.num_handled -= 1
        state.last_handled_s = time.monotonic()


async def _wake(state: ServerState, load: Callable[[], AsyncLLM]) -> None:
    start_s = time.perf_counter()
    try:
        state.attach(await asyncio.to_thread(load))
        log.info("model loaded again in %.1f s", time.perf_counter() - start_s)
    finally:
        state.waking = None


async def sleep_when_idle(state: ServerState, keep_alive_s: float) -> None:
    """Unload the model whenever nobody has asked for so long; runs until it is cancelled."""
    while True:
        is_busy = state.num_handled > 0 or state.num_unfinished > 0
        if is_busy:
            state.last_handled_s = time.monotonic()
        left_s = state.last_handled_s + keep_alive_s - time.monotonic()
        if left_s > 0 or state.llm is None:
            await asyncio.sleep(max(left_s, keep_alive_s / 4, 0.01))
            continue
        await unload(state)


async def unload(state: ServerState) -> None:
    """Give the model's memory back; the next request loads it again."""
    llm, state.llm = state.llm, None
    assert llm is not None, "there is a model"
    state.is_asleep = True
    try:
        await llm.shutdown(timeout_s=5.0)
    finally:
        state.metrics.detach()
    del llm
    await asyncio.to_thread(_collect)
    log.info("model unloaded; the next request loads it again")


def _collect() -> None:
    gc.unfreeze()
    gc.collect()
    trim_heap()
