"""One recorded run for all tests, and a fresh copy of it for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fakes.lineage_chain import Chain


@pytest.fixture(scope="session")
def _master(tmp_path_factory: pytest.TempPathFactory) -> tuple[Chain, Path]:
    root = tmp_path_factory.mktemp("lineage") / "my store"
    chain = Chain.make(root)
    kept = root.with_name("kept")
    shutil.copytree(root, kept)
    return chain, kept


@pytest.fixture
def chain(_master: tuple[Chain, Path]) -> Chain:
    """A whole run in a store whose path has a space in it."""
    made, kept = _master
    shutil.rmtree(made.root)
    shutil.copytree(kept, made.root)
    return Chain(made.root, made.run_id, made.name, artifacts=dict(made.artifacts))
