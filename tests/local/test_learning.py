"""Learning is real: over three seeds, on prompts that the RL split does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.local.runs import path_in, start

SEEDS = (0, 1, 2)
HELD_OUT = 20


def test_greedy_accuracy_on_held_out_prompts_rises_by_at_least_three_tenths_over_three_seeds(store: Path) -> None:
    scores = {}
    for seed in SEEDS:
        run = start(store, "train_steps=100", "train_save_every=50", *(f"{name}_seed={seed}" for name in ("model", "data", "train")))
        code, output = run.finish()
        assert code == 0, output
        series = path_in(output, "reward curve").with_name("series.jsonl")
        found = {row["step"]: row["eval_score"] for row in map(json.loads, series.read_text().splitlines()) if "eval_score" in row}
        assert sorted(found) == [0, 100]
        scores[seed] = (found[0], found[100])
    for folder in (store / "datasets").iterdir():
        train, test = (
            {str(row["prompt"]) for row in pq.read_table(folder / f"{split}.parquet").to_pylist()} for split in ("train", "test")
        )
        assert len(test) == HELD_OUT
        assert not train & test
    base, trained = (sum(pair[side] for pair in scores.values()) / len(SEEDS) for side in (0, 1))
    print(f"greedy accuracy on {HELD_OUT} held-out prompts, base -> trained, by seed: {scores}; pooled {base:.3f} -> {trained:.3f}")
    assert len(SEEDS) * HELD_OUT >= 60
    assert trained - base >= 0.3, scores
