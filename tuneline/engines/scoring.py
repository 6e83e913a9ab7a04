"""Rewards in one file without imports of ours: it also runs alone on the workers of verl, whose image has no Tuneline.

A reward maps completions and ground truths to one number each. There, TUNELINE_REWARD names it: gsm8k, exact or module:function.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

_NUMBER = re.compile(r"#### (-?[0-9.,]+)")


def gsm8k(completions: Sequence[str], ground_truths: Sequence[str]) -> list[float]:
    """1 where the last `#### n` of a completion is the ground truth's number, else 0.

    A ground truth may be the bare number or a whole GSM8K rationale that ends in `#### n`.
    """
    return [
        1.0 if (answer := _final_number(completion)) is not None and answer == _plain(_final_number(truth) or truth) else 0.0
        for completion, truth in zip(completions, ground_truths, strict=True)
    ]


def _final_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def _plain(number: str) -> str:
    return number.strip().replace(",", "").removesuffix(".")


def exact(completions: Sequence[str], ground_truths: Sequence[str]) -> list[float]:
    """1 where the whole completion, without white space around it, is the ground truth, else 0."""
    return [1.0 if completion.strip() == truth.strip() else 0.0 for completion, truth in zip(completions, ground_truths, strict=True)]


NAMED: dict[str, Callable[[Sequence[str], Sequence[str]], list[float]]] = {"gsm8k": gsm8k, "exact": exact}


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """verl's signature of a reward: one completion's score by the reward that TUNELINE_REWARD names.

    Raises:
        ValueError: If the reward gives anything but one finite number.
    """
    name = os.environ["TUNELINE_REWARD"]
    module, _colon, function = name.partition(":")
    reward = NAMED[name] if name in NAMED else getattr(importlib.import_module(module), function)
    scores = [float(score) for score in reward([solution_str], [ground_truth])]
    if len(scores) != 1 or not math.isfinite(scores[0]):
        raise ValueError(f"reward {name!r} gave {scores} for one completion; it must give one finite number a completion")
    return scores[0]
