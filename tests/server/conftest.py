"""Servers that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny_model import write_tiny_model
from tests.server.harness import Server
from tests.server.process import Launch, Process

Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servers over a fake model; takes the arguments of ``Server``."""
    servers: list[Server] = []

    def make(*args: Any, **settings: Any) -> Server:
        servers.append(Server(*args, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model on disk, whose context takes it long to fill."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    return write_tiny_model(folder, max_position_embeddings=30_000)


@pytest.fixture
def launch(tiny_model: Path) -> Iterator[Launch]:
    """Starts servers of a tiny model in processes of their own; takes options of ``pyvt serve``."""
    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(tiny_model, *options))
        return started[-1]

    yield start
    for server in started:
        server.kill()
