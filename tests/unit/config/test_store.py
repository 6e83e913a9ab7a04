"""The layout of a store."""

from __future__ import annotations

import pytest

from tuneline.config.store import Store
from tuneline.core.errors import StoreError


def test_paths_lie_below_the_root() -> None:
    assert Store("/").lineage_db() == "/lineage/lineage.sqlite"
    assert Store("gs://bucket/a/").run("tl1") == "gs://bucket/a/runs/tl1"


def test_no_root_is_no_store() -> None:
    with pytest.raises(StoreError, match="no root"):
        Store("")
