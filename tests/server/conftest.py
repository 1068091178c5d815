"""Servers that end with their test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.harness import Server

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
