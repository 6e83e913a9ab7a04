"""One store, whose path has a space in it, and the first run in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.runs import last_log, start


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("with a space") / "store"


@pytest.fixture(scope="session")
def first(store: Path) -> str:
    """The output of the first run in the store; it stages the model that later runs take from the cache."""
    code, output = start(store).finish()
    assert code == 0, output + last_log(store)
    return output
