"""verl's console: one line a step, `step:N - key:value - key:value`, printed by one process among many."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from tuneline.engines.console import Row, clean, finite, number

#: Our names and verl's: the first that a line has counts (0.6.1's and 0.9's differ).
NAMES = {
    "reward_mean": ("critic/score/mean", "critic/rewards/mean"),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "response_length": ("response_length/mean",),
    "grad_norm": ("actor/grad_norm",),
    "learning_rate": ("actor/lr",),
    "loss": ("actor/loss", "actor/pg_loss"),
    "step_time": ("perf/time_per_step", "timing_s/step"),
}
_NAME = re.compile(r"[\w-]+(?:/[^\s:/]+)+")
_STEP = re.compile(r"(?:^|[^\w:/])step:(?P<step>\d+) - ")
_SCORE = re.compile(r"val-core/.+/mean@\d+|val/test_score/.+")


class Follower:
    """Reads lines as they come and gives each step's row as soon as its line is whole."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def __call__(self, lines: Iterable[str]) -> list[Row]:
        """The steps that these lines complete or change, by step; a step that is printed again unchanged is left out."""
        changed: set[int] = set()
        for _, text in clean(lines):
            for row in parse_line(text):
                merged = {**self._rows.get(row["step"], {}), **row}
                if not _same(merged, self._rows.get(row["step"], {})):
                    self._rows[row["step"]] = merged
                    changed.add(row["step"])
        return [self._rows[step] for step in sorted(changed)]


def parse(lines: Iterable[str]) -> list[Row]:
    """One row a step, by step."""
    return Follower()(lines)


def parse_line(text: str) -> list[Row]:
    """The rows of one line without its prefix: none, one, or more where two prints share it. verl's own names stay beside ours."""
    heads = list(_STEP.finditer(text))
    rows = []
    for head, after in zip_longest(heads, heads[1:]):
        end = after.start() if after else len(text)
        own = {}
        for part in text[head.end() : end].split(" - "):
            name, colon, shown = part.strip().rpartition(":")
            value = number(shown) if colon else None
            # A part that another process wrote into shows no number and is left out.
            if value is not None and _NAME.fullmatch(name):
                own[name] = value
        if own:
            rows.append({"step": int(head["step"]), **normalized(own), **own})
    return rows


def _same(one: Row, other: Row) -> bool:
    """Equality in which NaN is NaN."""
    return one.keys() == other.keys() and all(value == other[name] or value != value != other[name] for name, value in one.items())


def normalized(own: Mapping[str, float | int]) -> Row:
    """Our names for verl's metrics; those without a value are left out."""
    row: Row = {}
    for name, theirs in NAMES.items():
        value = next((own[key] for key in theirs if key in own), None)
        if value is not None:
            row[name] = value
    # verl prints extremes but no deviation. Equal scores are a deviation of 0; else it is not known.
    spreads = {name: own.get(f"critic/{name}/max", math.nan) - own.get(f"critic/{name}/min", math.nan) for name in ("score", "advantages")}
    if spreads["score"] == 0:
        row["reward_std"] = 0.0
    if finite(spreads["advantages"]):
        row["advantage_range"] = spreads["advantages"]
    tokens, seconds = own.get("perf/total_num_tokens"), row.get("step_time")
    if finite(tokens) and finite(seconds) and seconds:
        row["tokens_per_s"] = float(tokens) / float(seconds)  # type: ignore[arg-type]
    scores = [value for name, value in own.items() if _SCORE.fullmatch(name)]
    if scores:
        row["eval_score"] = sum(scores) / len(scores)
    return row
