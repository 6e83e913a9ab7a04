"""Guards while a training runs: pure functions over its metrics, each with a named reason to stop a job that only burns GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.engines.console import finite

Row = Mapping[str, Any]

#: An optimizer skips a step whose gradient is not finite; so many in a row are no accident.
BAD_GRADIENTS = 3
#: A step may sample few tokens; so many in a row below the limit are a collapse.
LOW_ENTROPIES = 3


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        flat_steps: Steps in a row in which no reward differs from another; 0 never.
        min_entropy: Lowest entropy, nats; 0 never.
    """

    flat_steps: int
    min_entropy: float

    @classmethod
    def of(cls, spec: RunSpec) -> Limits:
        return cls(spec.train_flat_steps, spec.train_min_entropy)


@dataclass(frozen=True)
class Trip:
    """Why a job is stopped.

    Attributes:
        reason: One of flat-reward, nan-loss, nan-gradient, entropy-collapse, too-few-gpus, short.
    """

    reason: str
    message: str
    found: str
    next_move: str


def check(series: Sequence[Row], limits: Limits) -> Trip | None:
    """The first guard that these steps trip.

    Args:
        series: Rows with our names, by step.
    """
    trained = [row for row in series if "reward_mean" in row or "loss" in row]
    return _loss(trained) or _gradient(trained) or _flat(trained, limits.flat_steps) or _entropy(trained, limits.min_entropy)


def _loss(series: Sequence[Row]) -> Trip | None:
    bad = next((row for row in series if _broken(row.get("loss"))), None)
    if bad is None:
        return None
    return Trip(
        "nan-loss",
        f"the loss is {bad['loss']} at step {bad['step']}: the weights are lost from there on",
        found=_recent(series, "loss"),
        next_move="lower train_learning_rate, or look for empty completions; the checkpoints before that step are good",
    )


def _gradient(series: Sequence[Row]) -> Trip | None:
    bad = _last(series, lambda row: _broken(row.get("grad_norm")))
    if len(bad) < BAD_GRADIENTS:
        return None
    return Trip(
        "nan-gradient",
        f"no gradient is finite since step {bad[0]['step']}: nothing is learned",
        found=_recent(series, "grad_norm"),
        next_move="lower train_learning_rate; the checkpoints before that step are good",
    )


def _flat(series: Sequence[Row], limit: int) -> Trip | None:
    """Without a difference between rewards there is no advantage and no gradient.

    A training that reached the best reward it ever had is done, not broken: it ends by its own steps.
    """
    flat = _last(series, is_flat)
    if not limit or len(flat) < limit:
        return None
    earlier = [row["reward_mean"] for row in series[: len(series) - len(flat)] if finite(row.get("reward_mean"))]
    now = flat[-1].get("reward_mean", 0)
    if earlier and now >= max(earlier):
        return None
    return Trip(
        "flat-reward",
        f"every completion of a prompt has had the same reward for {len(flat)} steps (reward {now:g} since step {flat[0]['step']}): "
        "nothing is learned",
        found=_recent(series, "reward_mean"),
        next_move="score a few completions by hand: the reward may not be able to parse the gold answers, or the task be too hard",
    )


def is_flat(row: Row) -> bool:
    """Whether no reward of the step differs from the others, as far as its metrics tell.

    An engine that prints no deviation prints the mean with four digits: exactly 0 is the mean of rewards that are all 0.
    """
    if row.get("reward_std") is not None:
        return bool(row["reward_std"] == 0)
    if row.get("advantage_range") is not None:
        return bool(row["advantage_range"] == 0)
    return row.get("reward_mean") == 0


def _entropy(series: Sequence[Row], limit: float) -> Trip | None:
    low = _last(series, lambda row: finite(row.get("entropy")) and row["entropy"] < limit)
    if not limit or len(low) < LOW_ENTROPIES:
        return None
    return Trip(
        "entropy-collapse",
        f"the entropy is below {limit:g} nats since step {low[0]['step']}: the policy gives one answer only",
        found=_recent(series, "entropy"),
        next_move="lower train_learning_rate, give a KL term (train_kl_coef), or lower train_min_entropy",
    )


def too_few_gpus(registered: int, wanted: int) -> Trip | None:
    """Ray has fewer GPUs than the job takes: verl raises at once, NeMo RL waits for ever."""
    if registered >= wanted:
        return None
    return Trip(
        "too-few-gpus",
        f"Ray has {registered} of {wanted} GPUs",
        found=f"{wanted - registered} GPUs are missing",
        next_move="look at the worker pods: an image that is still pulled, a node that did not come, a GPU that its driver does not show",
    )


def short(step: int, expected: int) -> Trip | None:
    """A job that ended with exit code 0 before its last step (verl#7401: a resume that skipped an epoch)."""
    if step >= expected:
        return None
    return Trip(
        "short",
        f"the job ended without an error at step {step} of {expected}",
        found=f"newest complete checkpoint: {f'step {step}' if step else 'none'}",
        next_move="check the data set's size against train_steps, and the job's log",
    )


def _broken(value: object) -> bool:
    return isinstance(value, int | float) and not math.isfinite(value)


def _last(series: Sequence[Row], holds: Any) -> list[Row]:
    """The steps at the end of the series for which it holds, oldest first."""
    return list(takewhile(holds, reversed(series)))[::-1]


def _recent(series: Sequence[Row], name: str) -> str:
    shown = [f"{row['step']}: {row[name]:.4g}" for row in series[-5:] if isinstance(row.get(name), int | float)]
    return f"{name} by step {', '.join(shown)}"
