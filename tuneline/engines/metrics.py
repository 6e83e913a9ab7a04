"""Training metrics: one line of JSON a step in each attempt's `metrics.jsonl`, merged, summed up and drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

#: TRL's names and ours (engines/base.py).
FROM_TRL = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy",
    "completions/mean_length": "response_length",
    "step_time": "step_time",
}


def parse(lines: Iterable[str]) -> list[dict[str, Any]]:
    """One dict a step, by step; of two lines of a step the later wins. A last line that is cut off is skipped."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
            by_step[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [by_step[step] for step in sorted(by_step)]
