"""Runs a server: the socket, the model's loading, signals, and the way down.

1. The socket is bound before the model is loaded: a port in use is known at once, and ``/health``
   answers while ``/ready`` says why not yet.
2. The first signal drains: no new requests (503), running ones get ``shutdown_timeout_s``, then the
   rest is aborted. The second one ends the process at once.
3. TLS and Unix sockets are uvicorn's.
"""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import ConfigError
from pyvt.log import get_logger
from pyvt.server.app import create_app
from pyvt.server.connection import Connection
from pyvt.server.sleep import sleep_when_idle
from pyvt.server.state import ServerState

log = get_logger(__name__)

# Longer than the pools of clients keep a connection, so that it is they who close it.
KEEP_ALIVE_S = 75
_POLL_S = 0.05
_DATE_S = 1.0
_BACKLOG = 1024


def listen(config: ServerConfig) -> socket.socket:
    """Return the bound socket.

    Raises:
        ConfigError: the address is in use or is none of this machine.
    """
    where = config.uds or f"{config.host}:{config.port}"
    try:
        if config.uds is not None:
            return _unix_socket(Path(config.uds))
        sock = _tcp_socket(config)
    except OSError as error:
        raise ConfigError(
            f"[serve] address: expected {where!r} to be free and of this machine, got "
            f"{error.strerror or error}; choose another with --port or --host",
            field="server.port",
        ) from error
    sock.setblocking(False)
    return sock


def _tcp_socket(config: ServerConfig) -> socket.socket:
    """Bind an address; ``::`` is all addresses, those of IPv4 too where the system can."""
    return socket.create_server(
        (config.host, config.port),
        family=socket.AF_INET6 if ":" in config.host else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=config.host == "::" and socket.has_dualstack_ipv6(),
    )


def _unix_socket(path: Path) -> socket.socket:
    """Bind a Unix socket that only its owner may use; one that nobody serves is replaced."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, "address in use")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


def url_of(config: ServerConfig, sock: socket.socket) -> str:
    """Return the URL that a client on this machine uses."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def serve(
    state: ServerState,
    sock: socket.socket,
    load: Callable[[], AsyncLLM],
    on_ready: Callable[[str], None],
    on_drain: Callable[[int], None],
) -> None:
    """Serve until a signal comes; the engine has ended when it returns.

    Args:
        state: of the server.
        sock: bound, see ``listen``.
        load: loads the model; runs on a thread while the server already answers.
        on_ready: told the URL when requests are taken.
        on_drain: told how many requests are unfinished when the first signal has come.

    Raises:
        PyvtError: the model could not be loaded.
    """
    try:
        run_loop(_serve(state, sock, load, on_ready, on_drain))
    finally:
        sock.close()
        if state.config.uds is not None:
            Path(state.config.uds).unlink(missing_ok=True)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run work in an event loop: uvloop's where it is installed, which takes less for a token."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # it is not there for Windows
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


async def _serve(
    state: ServerState,
    sock: socket.socket,
    load: Callable[[], AsyncLLM],
    on_ready: Callable[[str], None],
    on_drain: Callable[[int], None],
) -> None:
    server = UnsignalledServer(uvicorn_config(state))
    running = asyncio.ensure_future(server.serve(sockets=[sock]))
    load = settled(load)
    ending: list[asyncio.Future[None]] = []
    sleeping: asyncio.Future[None] | None = None

    def on_signal() -> None:
        if ending:
            _exit_at_once(state)
        on_drain(state.num_unfinished)
        ending.append(asyncio.ensure_future(_drain(state, server)))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    loading = asyncio.ensure_future(_load(state, load))
    try:
        await asyncio.wait({loading, running}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            if not ending:
                on_ready(url_of(state.config, sock))
            if state.config.keep_alive_s is not None:
                state.load = load
                sleeping = asyncio.ensure_future(sleep_when_idle(state, state.config.keep_alive_s))
        await running
    finally:
        server.stop()
        if sleeping is not None:
            sleeping.cancel()
        await asyncio.gather(running, *ending, return_exceptions=True)
        if state.llm is not None:
            await state.llm.shutdown(timeout_s=5.0)


async def _load(state: ServerState, load: Callable[[], AsyncLLM]) -> None:
    """Load the model; nobody but the state holds it, which must be able to let go of it."""
    state.attach(await asyncio.to_thread(load))


def settled(load: Callable[[], AsyncLLM]) -> Callable[[], AsyncLLM]:
    """Return a load behind which Python's collector leaves alone what is there.

    A full collection looks at every object of the model and of the libraries, while no token comes.
    """

    def load_and_settle() -> AsyncLLM:
        llm = load()
        gc.collect()
        gc.freeze()
        return llm

    return load_and_settle


async def _drain(state: ServerState, server: "UnsignalledServer") -> None:
    """Let running requests end and their answers be read, then stop the server."""
    state.is_draining = True
    await _until_idle(state, server, state.config.shutdown_timeout_s)
    if state.num_unfinished:
        log.warning("aborting %d requests after the drain", state.num_unfinished)
        state.close_streams()
        await _until_idle(state, server, 1.0)
    server.end_answers()
    server.stop()


async def _until_idle(state: ServerState, server: "UnsignalledServer", timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while (state.num_unfinished or server.is_answering) and loop.time() < end_s:
        await asyncio.sleep(_POLL_S)


def _exit_at_once(state: ServerState) -> None:
    """End the process without waiting for anything; the system frees the port and the memory."""
    if state.config.uds is not None:
        Path(state.config.uds).unlink(missing_ok=True)
    os._exit(130)


def uvicorn_config(state: ServerState) -> uvicorn.Config:
    """Return how uvicorn runs a server.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    config = state.config
    made = uvicorn.Config(
        create_app(state),
        http=Connection,
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        proxy_headers=False,
    )
    try:
        made.load()
    except OSError as error:  # of TLS too
        raise ConfigError(
            f"[serve] ssl_certfile: expected PEM files of a certificate and of its key, got "
            f"{error.strerror or error}",
            field="server.ssl_certfile",
        ) from error
    return made


class UnsignalledServer(uvicorn.Server):
    """A server that leaves signals to ``serve`` and sleeps until it is told to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Keep the date that answers have, which changes once a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _DATE_S)

    def stop(self) -> None:
        """Begin the end; any thread may call it."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def is_answering(self) -> bool:
        """Whether a client waits for an answer, or for the rest of one."""
        return any(connection.is_answering for connection in self._connections())

    def end_answers(self) -> None:
        """End all connections whose answers are unfinished or unread."""
        for connection in self._connections():
            if connection.is_answering:
                connection.end()

    def _connections(self) -> list[Connection]:
        return [c for c in self.server_state.connections if isinstance(c, Connection)]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Do nothing; it is never installed."""
