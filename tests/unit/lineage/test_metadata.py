from __future__ import annotations

import pytest

from tuneline.core.errors import LineageError
from tuneline.lineage.metadata import check_metadata, lineage_metadata, params_sha256


def test_everything_is_text_and_nothing_empty_is_written() -> None:
    metadata = lineage_metadata(
        kind="hf", digest="ab" * 32, run_id="tl1", task="convert", attempt=2, step=0, dataset_sha256=["1" * 64, "2" * 64]
    )
    assert metadata == {
        "lineage_schema": "1",
        "lineage_kind": "hf",
        "lineage_digest": "ab" * 32,
        "lineage_run": "tl1",
        "lineage_task": "convert",
        "lineage_attempt": "2",
        "lineage_step": "0",
        "lineage_dataset_sha256": "1" * 64,
        "lineage_dataset_sha256_2": "2" * 64,
    }


def test_parameters_are_named_by_a_digest_that_their_order_does_not_change() -> None:
    assert params_sha256({"a": 1, "b": 1e-6}) == params_sha256({"b": 1e-6, "a": 1}) != params_sha256({"a": 1, "b": 2e-6})
    assert lineage_metadata(kind="hf", digest="", parameters={"a": 1})["lineage_params_sha256"] == params_sha256({"a": 1})


@pytest.mark.parametrize(
    ("metadata", "told"), [({"step": "1"}, "flat text"), ({"lineage_step": 1}, "flat text"), ({"lineage_code": "x" * 4096}, "4115 bytes")]
)
def test_what_a_store_cannot_hold_is_refused(metadata: dict[str, str], told: str) -> None:
    with pytest.raises(LineageError, match=told):
        check_metadata(metadata)
