"""The built-in data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tuneline.engines import arithmetic


def _rows(folder: Path, split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{split}.parquet").to_pylist()
    return rows


def test_rows_are_in_verls_schema_and_the_splits_share_no_prompt(tmp_path: Path) -> None:
    told = arithmetic.write_dataset(tmp_path, 0)
    train, test = _rows(tmp_path, "train"), _rows(tmp_path, "test")
    assert told == {"train_rows": 80, "test_rows": 20, "data_source": "tuneline/arithmetic"}
    assert (len(train), len(test)) == (80, 20)
    prompts = {row["prompt"][0]["content"] for row in train + test}
    assert len(prompts) == 100
    for split, rows in (("train", train), ("test", test)):
        for index, row in enumerate(rows):
            assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
            x, y = map(int, row["prompt"][0]["content"].removesuffix(" =").split(" + "))
            assert row["prompt"][0]["role"] == "user"
            assert row["reward_model"] == {"style": "rule", "ground_truth": str(x + y)}
            assert row["extra_info"] == {"split": split, "index": index}


def test_the_seed_decides_the_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        arithmetic.write_dataset(tmp_path / name, seed)
    a, b, c = ((tmp_path / name / "test.parquet").read_bytes() for name in "abc")
    assert a == b
    assert a != c
