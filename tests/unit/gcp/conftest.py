"""The ports on fakes that Google's real clients drive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.google import GoogleFakes
from tuneline.gcp.clients import Google
from tuneline.gcp.ownership import Mark


@pytest.fixture
def fakes() -> Iterator[GoogleFakes]:
    with GoogleFakes() as running:
        yield running


@pytest.fixture
def google(fakes: GoogleFakes) -> Google:
    return Google("demo", endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock)


@pytest.fixture
def mark() -> Mark:
    return Mark("tltesttesta", "2030-01-07t00-00z")


OTHER = Mark("tlothertest", "2030-01-08t00-00z")
