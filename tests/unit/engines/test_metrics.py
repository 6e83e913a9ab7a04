"""Metrics: lines to series, attempts to one training, series to figures and pictures."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tuneline.engines import metrics


def _write(root: Path, attempt: str, rows: list[dict[str, float]], at: int, tail: str = "") -> None:
    path = root / attempt / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    os.utime(path, (at, at))


def test_parse_skips_what_is_cut_off_and_takes_the_later_of_two_lines() -> None:
    lines = ['{"step": 2, "loss": 1}', '{"step": 1, "loss": 3}', "", "not json", '{"loss": 4}', '{"step": 2, "loss": 5}', '{"step": 3, "lo']
    assert metrics.parse(lines) == [{"step": 1, "loss": 3}, {"step": 2, "loss": 5}]


def test_a_series_joins_attempts_and_the_later_attempt_counts(tmp_path: Path) -> None:
    _write(tmp_path, "run-a2", [{"step": 2, "reward_mean": 0.4}, {"step": 3, "reward_mean": 0.5}], at=20)
    _write(
        tmp_path, "run-a1", [{"step": 0, "eval_score": 0.1}, {"step": 1, "reward_mean": 0.2}, {"step": 2, "reward_mean": 0.3}], 10, '{"s'
    )
    assert [(row["step"], row.get("reward_mean")) for row in metrics.read_series(tmp_path)] == [(0, None), (1, 0.2), (2, 0.4), (3, 0.5)]


def test_attempts_of_one_moment_go_by_number(tmp_path: Path) -> None:
    for number in (10, 9):
        _write(tmp_path, f"run-a{number}", [{"step": 1, "loss": float(number)}], at=10)
    assert metrics.read_series(tmp_path) == [{"step": 1, "loss": 10.0}]


def test_a_summary_has_first_last_best_and_leaves_out_what_there_is_not() -> None:
    series = [
        {"step": 0, "eval_score": 0.25},
        {"step": 1, "reward_mean": 0.1, "tokens_per_s": 100.0, "step_time": 2.0},
        {"step": 2, "reward_mean": 0.9, "tokens_per_s": 200.0, "step_time": 1.0},
        {"step": 3, "reward_mean": 0.8, "tokens_per_s": 300.0, "step_time": 1.0, "eval_score": 0.75},
    ]
    assert metrics.summary(series) == {
        "steps": 3,
        "reward_first": 0.1,
        "reward_last": 0.8,
        "reward_best": 0.9,
        "reward_best_step": 2,
        "eval_first": 0.25,
        "eval_last": 0.75,
        "eval_gain": 0.5,
        "tokens": 700,
        "train_seconds": 4.0,
    }
    assert metrics.summary([]) == {"steps": 0}


SERIES = [
    {"step": 0, "eval_score": 0.25},
    *({"step": step, "reward_mean": step / 40, "step_time": 1.0, "tokens_per_s": 1.0} for step in range(1, 41)),
]


def test_the_page_stands_alone_and_draws_every_step_inside_its_axes() -> None:
    page = metrics.curve_html(SERIES, 'Reward of <"m">')
    assert "Reward of &lt;&quot;m&quot;&gt;" in page
    assert not re.search(r"https?://|url\(|<script|src=", page)
    assert "prefers-color-scheme:dark" in page
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    lines = {line.get("class"): (line.get("points") or "").split() for line in svg.iter("polyline")}
    assert {name: len(points) for name, points in lines.items()} == {"raw": 40, "line": 40}
    for point in lines["raw"]:
        x, y = map(float, point.split(","))
        assert 56 <= x <= 840
        assert 34 <= y <= 332
    assert {"training step", "mean reward"} <= {text.text for text in svg.iter("text")}
    assert len(list(svg.iter("circle"))) == 1


def test_a_page_without_steps_is_still_a_page() -> None:
    assert "<svg" in metrics.curve_html([], "nothing yet")
    assert "<svg" in metrics.curve_html([{"step": 5, "reward_mean": 0.0}], "one step")


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    metrics.curve_png(SERIES, tmp_path / "deep" / "curve.png")
    assert (tmp_path / "deep" / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
