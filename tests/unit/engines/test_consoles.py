"""Metrics from both engines' consoles: the engines' own prints, and any interleaving, prefixing and doubling of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.engines import nemo_rl_log, verl_log
from tuneline.engines.console import number

CONSOLES = Path(__file__).resolve().parents[2] / "golden" / "console"
OURS = ("step", "reward_mean", "reward_std", "kl", "entropy", "response_length", "grad_norm", "learning_rate", "loss", "tokens_per_s",
        "step_time", "eval_score")  # fmt: skip


def golden(name: str) -> list[str]:
    return (CONSOLES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def ours(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in OURS if name in row} for row in rows]


def test_verl_s_own_console() -> None:
    rows = verl_log.parse(golden("verl"))
    nan = rows[2].pop("grad_norm")
    assert math.isnan(nan)
    step = {"reward_mean": 0.5, "kl": 0.001, "response_length": 201.5, "learning_rate": 1e-6, "tokens_per_s": 2000.0, "step_time": 61.728}
    assert ours(rows) == [
        {"step": 0, "eval_score": 0.25},
        {"step": 1, **step, "entropy": 0.5, "grad_norm": 0.125, "loss": -0.00012345678901234},
        {"step": 2, **step, "entropy": 0.25, "loss": -0.00024691357802468, "eval_score": 0.75},
    ]
    assert rows[1]["perf/total_num_tokens"] == 123456
    assert rows[1]["advantage_range"] == pytest.approx(4.9497332572937012)
    assert not [name for row in rows for name in row if "number" in name]


def test_nemo_rl_s_own_console() -> None:
    rows = nemo_rl_log.parse(golden("nemo_rl"))
    assert ours(rows) == [
        {"step": 0, "eval_score": 0.25},
        {"step": 1, "reward_mean": 0.25, "response_length": 201.5, "loss": -0.0123, "step_time": 61.5},
        {"step": 2, "reward_mean": 0.5, "response_length": 201.5, "loss": -0.0246, "step_time": 61.5, "eval_score": 0.75},
    ]
    assert rows[1]["Generation KL Error"] == 0.0004


def test_nemo_rl_counts_steps_over_epochs_and_from_a_resume() -> None:
    lines = ["===== Epoch 1/9 =====", "===== Step 1/1 =====", "📊 Training Results:", "  • Loss: 1.0", "===== Epoch 2/9 =====",
             "===== Step 1/1 =====", "📊 Training Results:", "  • Loss: 2.0"]  # fmt: skip
    assert [(row["step"], row["loss"]) for row in nemo_rl_log.parse(lines)] == [(1, 1.0), (2, 2.0)]
    resumed = ["▶ Starting validation at step 0...", "📊 Validation Results:", "    • Accuracy: 0.5", *lines]
    assert [row["step"] for row in nemo_rl_log.parse(resumed, start=10)] == [10, 11, 12]


def test_equal_scores_are_a_deviation_of_zero() -> None:
    [row] = verl_log.parse(["step:3 - critic/score/max:0.0 - critic/score/min:0.0 - critic/advantages/max:0.0 - critic/advantages/min:0.0"])
    assert (row["reward_std"], row["advantage_range"]) == (0.0, 0.0)
    [row] = verl_log.parse(["step:3 - critic/score/max:1.0 - critic/score/min:0.0"])
    assert "reward_std" not in row


def test_two_prints_on_one_line_are_two_steps_and_a_broken_part_is_left_out() -> None:
    text = "Training Progress:  5%|█ | 1/20\rstep:1 - actor/lr:1e-0Warning: x - a/b:2.0 step:2 - a/b:3.0 - c/d:np.float64(nan)"
    rows = verl_log.parse([text])
    assert rows[0] == {"step": 1, "a/b": 2.0}
    assert (rows[1]["step"], rows[1]["a/b"]) == (2, 3.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5", -2.5),
        ("1e-06", 1e-6),
        ("np.float64(0.5)", 0.5),
        ("np.int64(3)", 3),
        ("inf", math.inf),
        (".5", 0.5),
        ("0.5s", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


NOISE = [
    "(TaskRunner pid=42) Size of train dataloader: 29",
    "(pid=7) \x1b[33mWARNING step: something - odd:1\x1b[0m",
    "(WorkerDict pid=9, ip=10.0.0.7) INFO:2026-01-01 step:",
    "Training Progress:   3%|▎         | 2/58 [01:00<30:00]\r",
    "(autoscaler +10s) Resized to 16 GPUs.",
    "",
    "{'actor/lr': 1}",
]
WRAPS: list[Callable[[str], str]] = [
    lambda line: line,
    lambda line: f"(TaskRunner pid=4711) {line}",
    lambda line: f"\x1b[36m(TaskRunner pid=4711, ip=10.1.2.3)\x1b[0m {line}",
    lambda line: f"(main_task pid=1 [repeated 2x across cluster]) {line}",
    lambda line: f"{line}\r",
]
METRIC = st.sampled_from(["actor/entropy", "critic/score/mean", "response_length/mean", "timing_s/gen", "val-core/x/y/reward/mean@1"])
LABEL = st.sampled_from(["Loss", "Avg Reward", "Total step time"])
VALUE = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, width=64))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.dictionaries(METRIC, VALUE, min_size=1), min_size=1, max_size=6),
    st.sampled_from(WRAPS),
    st.randoms(use_true_random=False),
)
def test_verl_nothing_is_lost_or_invented(steps: list[dict[str, float]], wrap: Callable[[str], str], random: Any) -> None:
    lines = []
    for step, metrics in enumerate(steps):
        shown = " - ".join(
            f"{name}:{f'np.float64({value!r})' if random.random() < 0.5 else repr(value)}" for name, value in metrics.items()
        )
        lines += [wrap(f"step:{step} - {shown}")] * random.randint(1, 3)
    mixed = _mix(lines, random)
    rows = verl_log.parse(mixed)
    assert [row["step"] for row in rows] == list(range(len(steps)))
    for row, metrics in zip(rows, steps, strict=True):
        assert {name: value for name, value in row.items() if "/" in name} == metrics
        if "critic/score/mean" in metrics:
            assert row["reward_mean"] == metrics["critic/score/mean"]
    assert _in_pieces(verl_log.Follower(), mixed, random) == rows


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["Loss", "Avg Reward", "Total step time"]), st.floats(-1e6, 1e6), min_size=1),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(WRAPS),
    st.randoms(use_true_random=False),
)
def test_nemo_rl_nothing_is_lost_or_invented(steps: list[dict[str, float]], wrap: Callable[[str], str], random: Any) -> None:
    lines, expected = ["=" * 25 + " Epoch 1/1 " + "=" * 25], []
    for step, metrics in enumerate(steps, 1):
        lines.append(f"{'=' * 25} Step {step}/{len(steps)} {'=' * 25}")
        row: dict[str, float] = {"step": step}
        if random.random() < 0.5:
            lines += [f"▶ Starting validation at step {step}...", "📊 Validation Results:", "    • Accuracy: 0.5000"]
            row["eval_score"] = 0.5
        lines.append("📊 Training Results:")
        for label, value in metrics.items():
            lines.append(f"  • {label}: {value:.4f}{'s' if 'time' in label else ''}")
            row[nemo_rl_log.TRAINING[label]] = float(f"{value:.4f}")
        expected.append(row)
    mixed = _mix([wrapped for line in lines for wrapped in [wrap(line)] * random.randint(1, 2)], random)
    assert nemo_rl_log.parse(mixed) == expected
    assert _in_pieces(nemo_rl_log.Follower(), mixed, random) == expected


def _mix(lines: list[str], random: Any) -> list[str]:
    """Noise of other processes anywhere between the lines."""
    mixed = []
    for line in lines:
        mixed += random.choices(NOISE, k=random.randint(0, 3))
        mixed.append(line)
    return mixed


def _in_pieces(follower: Any, lines: list[str], random: Any) -> list[dict[str, Any]]:
    """What a follower tells over the whole log, read in pieces of any size; the later row of a step counts."""
    rows: dict[int, dict[str, Any]] = {}
    while lines:
        size = random.randint(1, 5)
        rows |= {row["step"]: row for row in follower(lines[:size])}
        lines = lines[size:]
    return [rows[step] for step in sorted(rows)]
