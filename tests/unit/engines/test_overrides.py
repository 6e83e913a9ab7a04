"""Hydra overrides: what is written is what Hydra reads (tests/engines proves it with Hydra itself)."""

from __future__ import annotations

import pytest

from tuneline.core.errors import StagingError
from tuneline.engines.overrides import Value, override


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "True"),
        (False, "False"),
        (3, "3"),
        (1e-6, "1e-06"),
        ("/data/models/x", "/data/models/x"),
        ("a b", "'a b'"),
        ("it's", r"'it\'s'"),
        ("back\\", r"'back\\'"),
        ("null", "'null'"),
        ("TRUE", "'TRUE'"),
        ("1e5", "'1e5'"),
        ("", "''"),
        ("a=b,c", "'a=b,c'"),
        (["console", "tensorboard"], "[console,tensorboard]"),
        ({"dataset_name": "ResponseDataset", "n": 1}, "{dataset_name:ResponseDataset,n:1}"),
    ],
)
def test_values(value: Value, written: str) -> None:
    assert override("a.b", value) == f"a.b={written}"


@pytest.mark.parametrize("value", ["${oc.env:HF_TOKEN}", "two\nlines", float("nan")])
def test_what_would_not_arrive_as_itself_is_refused(value: Value) -> None:
    with pytest.raises(StagingError):
        override("a", value)
