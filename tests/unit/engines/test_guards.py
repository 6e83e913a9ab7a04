"""Guards: what stops a job, and what must not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tuneline.engines import guards, nemo_rl_log, verl_log
from tuneline.engines.guards import Limits

LIMITS = Limits(flat_steps=5, min_entropy=0.01)


def series(count: int, **values: Any) -> list[dict[str, Any]]:
    return [{"step": step, "reward_mean": 0.5, "loss": 0.1, "reward_std": 0.4, **values} for step in range(1, count + 1)]


def reason(rows: list[dict[str, Any]], limits: Limits = LIMITS) -> str:
    trip = guards.check(rows, limits)
    return trip.reason if trip else ""


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([], ""),
        ([{"step": 0, "eval_score": 0.0}], ""),
        (series(50), ""),
        (series(5, reward_mean=0.0, reward_std=0.0), "flat-reward"),
        (series(4, reward_mean=0.0, reward_std=0.0), ""),
        # Collapsed from a better reward.
        ([*series(5), *series(5, reward_mean=0.0, reward_std=0.0)], "flat-reward"),
        # Solved: nothing better is left to learn.
        ([*series(5), *series(9, reward_mean=1.0, reward_std=0.0)], ""),
        # Rewards differ between prompts but never within one: no advantage.
        (series(5, reward_std=None, advantage_range=0.0), "flat-reward"),
        (series(1, loss=math.nan), "nan-loss"),
        ([*series(1, loss=math.inf), *series(9)], "nan-loss"),
        (series(2, grad_norm=math.nan), ""),
        (series(3, grad_norm=math.nan), "nan-gradient"),
        ([*series(3, grad_norm=math.nan), *series(1, grad_norm=0.5)], ""),
        (series(3, entropy=0.001), "entropy-collapse"),
        ([*series(3, entropy=0.001), *series(1, entropy=0.5)], ""),
        (series(9, entropy=None), ""),
    ],
)
def test_what_trips(rows: list[dict[str, Any]], wanted: str) -> None:
    assert reason(rows) == wanted


def test_limits_of_zero_never_trip() -> None:
    assert reason(series(99, reward_mean=0.0, reward_std=0.0, entropy=0.0), Limits(0, 0)) == ""


def test_the_nemo_rl_tutorial_s_log_trips() -> None:
    """Gold answers that the verifier cannot parse: `Avg Reward: 0.0000`, `Loss: 0.0000` at every step."""
    lines = []
    for step in range(1, 6):
        lines += [f"===== Step {step}/10 =====", "📊 Training Results:", "  • Loss: 0.0000", "  • Avg Reward: 0.0000"]
    trip = guards.check(nemo_rl_log.parse(lines), LIMITS)
    assert trip is not None
    assert trip.reason == "flat-reward"
    assert "same reward for 5 steps (reward 0 since step 1)" in trip.message
    assert "gold answers" in trip.next_move


def test_a_nemo_rl_log_with_a_reward_does_not() -> None:
    lines = []
    for step in range(1, 30):
        lines += [f"===== Step {step}/30 =====", "📊 Training Results:", "  • Loss: 0.0000", "  • Avg Reward: 0.2500"]
    assert guards.check(nemo_rl_log.parse(lines), LIMITS) is None


def test_verl_s_line_trips() -> None:
    line = "step:{} - actor/pg_loss:0.0 - critic/score/mean:0.0 - critic/score/max:0.0 - critic/score/min:0.0"
    trip = guards.check(verl_log.parse([line.format(step) for step in range(1, 7)]), LIMITS)
    assert trip is not None
    assert trip.reason == "flat-reward"


def test_gpus_and_last_step() -> None:
    assert guards.too_few_gpus(16, 16) is None
    missing = guards.too_few_gpus(15, 16)
    assert missing is not None
    assert missing.reason == "too-few-gpus"
    assert guards.short(58, 58) is None
    ended = guards.short(40, 58)
    assert ended is not None
    assert "step 40 of 58" in ended.message
