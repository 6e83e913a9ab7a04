"""The built-in data set: sums of two numbers below ten, in verl's parquet schema.

100 prompts `x + y =`; the seed chooses the 20 that only test.parquet holds. Small enough to train on in seconds, large enough
that a model which learns the rule answers prompts that it was never rewarded for.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

LIMIT = 10
HELD_OUT = 20
DATA_SOURCE = "tuneline/arithmetic"


def prompts() -> list[tuple[int, int]]:
    """All pairs (x, y) below LIMIT, in order."""
    return [(x, y) for x in range(LIMIT) for y in range(LIMIT)]


def question(x: int, y: int) -> str:
    """The user's message."""
    return f"{x} + {y} ="


def _row(x: int, y: int, split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question(x, y)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(x + y)},
        "extra_info": {"split": split, "index": index},
    }


def write_dataset(folder: Path, seed: int) -> dict[str, Any]:
    """Write `train.parquet` (80 rows) and `test.parquet` (20 rows) into `folder`; equal seeds give equal bytes.

    Returns:
        train_rows, test_rows and data_source, for the artifact's metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = prompts()
    random.Random(seed).shuffle(order)
    splits = {"test": sorted(order[:HELD_OUT]), "train": sorted(order[HELD_OUT:])}
    text = pa.string()
    schema = pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("split", text), ("index", pa.int64())])),
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        rows = [_row(x, y, split, index) for index, (x, y) in enumerate(pairs)]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{split}.parquet", compression="zstd")
    return {"train_rows": len(splits["train"]), "test_rows": len(splits["test"]), "data_source": DATA_SOURCE}
