"""Data set adapters: rows of a source become verl's schema, checked, train and test apart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tuneline.core.errors import StagingError

Row = dict[str, Any]
SPLITS = ("train", "test")
SUFFIXES = (".parquet", ".jsonl")
_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")


def adapt(source: Path, target: Path, adapter: str) -> dict[str, int]:
    """Write `train.parquet` and `test.parquet` into `target`.

    Args:
        source: A folder with parquet or jsonl files whose names hold `train` and `test` (or `validation`).
        adapter: verl | gsm8k.

    Returns:
        Rows of each split.

    Raises:
        StagingError: If a split is missing or empty, a row does not fit, or a test prompt is also in train.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    prompts: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for split in SPLITS:
        rows = [_adapted(adapter, row, split, number) for number, row in enumerate(_read(source, split))]
        if not rows:
            raise StagingError(
                f"the {split} split is empty",
                found=", ".join(sorted(path.name for path in source.rglob("*.*"))[:20]) or "no file",
                next_move=f"give a file with '{split}' in its name and rows in it",
            )
        prompts[split] = {json.dumps(row["prompt"], sort_keys=True) for row in rows}
        counts[split] = len(rows)
        try:
            pq.write_table(pa.Table.from_pylist(rows), target / f"{split}.parquet")
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise StagingError(
                f"the rows of the {split} split make no table",
                found=str(error),
                next_move="give each field of prompt, reward_model and extra_info one type over all rows, and no field without content",
            ) from error
    both = prompts["train"] & prompts["test"]
    if both:
        raise StagingError(
            f"{len(both)} of {len(prompts['test'])} test prompts are also in train",
            found=sorted(both)[0][:200],
            next_move="take them out of one of the splits; a score on seen prompts says nothing",
        )
    return counts


def _verl(row: Row, split: str, number: int) -> Row:
    return {name: row[name] for name in _COLUMNS}


def _gsm8k(row: Row, split: str, number: int) -> Row:
    question, answer = row["question"], row["answer"]
    gold = answer.rsplit("####", 1)[1].strip().replace(",", "")
    prompt = question + ' Let\'s think step by step and output the final answer after "####".'
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": split, "index": number},
    }


ADAPTERS: dict[str, Callable[[Row, str, int], Row]] = {"verl": _verl, "gsm8k": _gsm8k}


def _adapted(adapter: str, row: Row, split: str, number: int) -> Row:
    """One row in verl's schema: prompt a list of {role, content}, ground_truth a text."""
    try:
        made = ADAPTERS[adapter](row, split, number)
        turns, truth = made["prompt"], made["reward_model"]["ground_truth"]
        if not turns or any(not isinstance(turn["role"], str) or not isinstance(turn["content"], str) for turn in turns):
            raise ValueError("prompt is no list of {role, content}")
        if not isinstance(truth, str) or not truth:
            raise ValueError("reward_model.ground_truth is no text")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StagingError(
            f"{split} row {number} does not fit the adapter {adapter}",
            asked="question, answer with ####" if adapter == "gsm8k" else ", ".join(_COLUMNS),
            found=f"{error!r} in a row with {', '.join(sorted(row))}",
            choices=sorted(ADAPTERS),
            next_move="choose the adapter that fits, or correct the rows",
        ) from error
    return made


def _files(source: Path, split: str) -> list[Path]:
    names = (split,) if split == "train" else ("test", "validation", "valid")
    found = (path for path in sorted(source.rglob("*")) if path.suffix in SUFFIXES and path.is_file())
    # At the start of a word: `latest` holds no test split.
    return [path for path in found if re.search(f"(?<![a-z])({'|'.join(names)})", path.name.lower())]


def _read(source: Path, split: str) -> Iterator[Row]:
    import pyarrow as pa

    for path in _files(source, split):
        try:
            yield from _rows(path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StagingError(f"{path.name} cannot be read", found=str(error), next_move="write or download it again") from error


def _rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    else:
        with open(path, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _json_row(line, f"{path.name} line {number}")


def _json_row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StagingError(f"{where} is no JSON", found=str(error), next_move="correct or remove the line") from error
    if not isinstance(row, dict):
        raise StagingError(f"{where} is no JSON object", found=line.strip()[:80], next_move="write one object a line")
    return row
