"""Fixtures of the Kubernetes layer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.kube.support import Handler, Server, Ticking


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], Server]]:
    """Starts servers that end with the test."""
    servers: list[Server] = []

    def start(handler: Handler) -> Server:
        servers.append(Server(handler))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
