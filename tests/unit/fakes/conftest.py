"""The fakes, started, and clients on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import Clients


@pytest.fixture
def fakes() -> Iterator[GoogleFakes]:
    with GoogleFakes() as running:
        yield running


@pytest.fixture
def clients(fakes: GoogleFakes) -> Clients:
    return Clients(fakes)
