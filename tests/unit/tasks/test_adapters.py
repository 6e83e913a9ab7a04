"""Adapters: rows become verl's schema, or the row is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tuneline.core.errors import StagingError
from tuneline.tasks import adapters


def write(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def gsm8k(number: int) -> dict[str, Any]:
    return {"question": f"What is {number}+1?", "answer": f"{number}+1={number + 1}\n#### {number + 1:,}"}


def test_gsm8k_becomes_verl_with_the_number_alone_as_truth(tmp_path: Path) -> None:
    source = write(tmp_path / "raw", train=[gsm8k(1), gsm8k(1233)], test=[gsm8k(3)])
    out = tmp_path / "out"
    out.mkdir()
    assert adapters.adapt(source, out, "gsm8k") == {"train": 2, "test": 1}
    rows = pq.read_table(out / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "1234"]
    assert rows[0]["prompt"][0]["role"] == "user"
    assert rows[0]["data_source"] == "openai/gsm8k"


@pytest.mark.parametrize(
    ("splits", "wanted"),
    [
        ({"train": [gsm8k(1)]}, "the test split is empty"),
        ({"train": [], "test": [gsm8k(1)]}, "the train split is empty"),
        ({"train": [gsm8k(1), {"question": "x"}], "test": [gsm8k(2)]}, "train row 1 does not fit"),
        ({"train": [{"question": "x", "answer": "no mark"}], "test": [gsm8k(2)]}, "train row 0 does not fit"),
        ({"train": [gsm8k(1), gsm8k(2)], "test": [gsm8k(2)]}, "1 of 1 test prompts are also in train"),
    ],
)
def test_faulty_sources_are_refused(tmp_path: Path, splits: dict[str, Any], wanted: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(StagingError, match=wanted):
        adapters.adapt(write(tmp_path / "raw", **splits), out, "gsm8k")


def verl(**changed: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": "1+1?"}]
    truth = {"style": "rule", "ground_truth": "2"}
    return {"data_source": "x", "prompt": prompt, "ability": "math", "reward_model": truth, "extra_info": {"i": 1}} | changed


@pytest.mark.parametrize(
    "rows",
    [
        [verl(extra_info={})],
        [verl(), verl(extra_info={"i": "one"})],
        [verl(extra_info={"i": 10**30})],
        [verl(prompt=[{"role": "user", "content": "\ud800"}])],
    ],
)
def test_rows_that_make_no_table_are_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    with pytest.raises(StagingError, match="the rows of the train split make no table"):
        adapters.adapt(write(tmp_path / "raw", train=rows, test=[]), tmp_path, "verl")


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("train.parquet", b"", "train.parquet cannot be read"),
        ("train.parquet", b"PAR1 and no more", "train.parquet cannot be read"),
        ("train.jsonl", b'{"question": "\xff"}', "train.jsonl cannot be read"),
        ("train.jsonl", b"[" * 100_000, "train.jsonl line 1 is no JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, wanted: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StagingError, match=wanted):
        adapters.adapt(tmp_path, tmp_path, "gsm8k")


def test_splits_are_told_by_words_of_files(tmp_path: Path) -> None:
    source = write(tmp_path / "raw", **{"latest-train": [gsm8k(1)], "Test": [gsm8k(2)]})
    (source / "train.parquet").mkdir()
    (source / "train-bom.jsonl").write_text(json.dumps(gsm8k(3)) + "\n", encoding="utf-8-sig")
    assert adapters.adapt(source, tmp_path, "gsm8k") == {"train": 2, "test": 1}


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "raw", train=[gsm8k(1)], test=[gsm8k(2)])
    (source / "train.jsonl").write_text("{broken\n")
    with pytest.raises(StagingError, match=r"train\.jsonl line 1"):
        adapters.adapt(source, tmp_path, "gsm8k")


def test_verl_rows_pass_as_they_are_and_a_wrong_prompt_is_refused(tmp_path: Path) -> None:
    row = {
        "data_source": "d",
        "prompt": [{"role": "user", "content": "1 + 1 ="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    other = {**row, "prompt": [{"role": "user", "content": "1 + 2 ="}]}
    (tmp_path / "out").mkdir()
    assert adapters.adapt(write(tmp_path / "a", train=[row], test=[other]), tmp_path / "out", "verl") == {"train": 1, "test": 1}
    with pytest.raises(StagingError, match="does not fit the adapter verl"):
        adapters.adapt(write(tmp_path / "b", train=[{**row, "prompt": "1 + 1 ="}], test=[other]), tmp_path / "out", "verl")
