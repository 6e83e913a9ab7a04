"""Training metrics: one line of JSON a step in each attempt's `metrics.jsonl`, merged, summed up and drawn."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
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

Row = dict[str, Any]
Point = tuple[float, float]


def parse(lines: Iterable[str]) -> list[Row]:
    """One dict a step, by step; of two lines of a step the later wins. A last line that is cut off is skipped."""
    by_step: dict[int, Row] = {}
    for line in lines:
        try:
            row = json.loads(line)
            by_step[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [by_step[step] for step in sorted(by_step)]


def read_series(training_root: Path) -> list[Row]:
    """The metrics of a training over all its attempts, by step; where attempts overlap, the later one's line counts.

    Args:
        training_root: `checkpoints/<training_key>`: each attempt's `metrics.jsonl` lies in a folder of it.
    """
    paths = sorted(training_root.glob("*/metrics.jsonl"), key=lambda path: (path.stat().st_mtime_ns, _natural(path.parent.name)))
    return parse(line for path in paths for line in path.read_text(encoding="utf-8").splitlines())


def _natural(name: str) -> list[tuple[int, str]]:
    """`a10` after `a9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def summary(series: Sequence[Row]) -> dict[str, float]:
    """Figures of a whole training: steps, reward_first, reward_last, reward_best, reward_best_step, eval_first, eval_last,
    eval_gain, tokens (prompts and completions) and train_seconds; those without a value are left out.
    """
    rewards, scores = _points(series, "reward_mean"), _points(series, "eval_score")
    figures: dict[str, float] = {"steps": max((int(row["step"]) for row in series), default=0)}
    if rewards:
        best = max(rewards, key=lambda point: point[1])
        figures |= {"reward_first": rewards[0][1], "reward_last": rewards[-1][1], "reward_best": best[1], "reward_best_step": int(best[0])}
    if scores:
        figures |= {"eval_first": scores[0][1], "eval_last": scores[-1][1], "eval_gain": round(scores[-1][1] - scores[0][1], 6)}
    timed = [row for row in series if "step_time" in row and "tokens_per_s" in row]
    if timed:
        figures["tokens"] = round(sum(row["step_time"] * row["tokens_per_s"] for row in timed))
        figures["train_seconds"] = round(sum(row["step_time"] for row in timed), 3)
    return figures


def _points(series: Sequence[Row], name: str) -> list[Point]:
    return [(float(row["step"]), float(row[name])) for row in series if isinstance(row.get(name), int | float) and math.isfinite(row[name])]


def _smooth(points: Sequence[Point]) -> list[Point]:
    """Mean over a window of a twentieth of the points, at least 5."""
    half = max(5, len(points) // 20) // 2
    windows = (points[max(0, index - half) : index + half + 1] for index in range(len(points)))
    return [(point[0], sum(value for _, value in window) / len(window)) for point, window in zip(points, windows, strict=True)]


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--soft:#667085;--grid:#e4e7ec;--page:#fff;--raw:#a9c1f5;--line:#2457c5;--score:#b4470c}
@media (prefers-color-scheme:dark){
:root{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2c3442;--page:#12161d;--raw:#35508f;--line:#8ab0ff;--score:#ffa266}}
body{margin:1.5rem auto;max-width:56rem;padding:0 1rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.15rem;font-weight:600}svg{width:100%;height:auto}text{fill:var(--soft);font:12px system-ui,sans-serif}
.grid{stroke:var(--grid)}.raw{stroke:var(--raw);fill:none}.line{stroke:var(--line);stroke-width:2;fill:none}
.score{fill:var(--score)}text.score{font-weight:600}text.reward{fill:var(--line);font-weight:600}
table{border-collapse:collapse}td{padding:.15rem 1.2rem .15rem 0;font-variant-numeric:tabular-nums}td:first-child{color:var(--soft)}
"""


def curve_html(series: Sequence[Row], title: str) -> str:
    """The reward of every step and the validation scores as one page: inline SVG, no network, light and dark."""
    width, height, left, right, top, bottom = 860, 380, 56, 20, 34, 48
    rewards, scores = _points(series, "reward_mean"), _points(series, "eval_score")
    low_x, high_x, low_y, high_y = _limits(rewards + scores)

    def at(point: Point) -> tuple[float, float]:
        x = left + (point[0] - low_x) / (high_x - low_x) * (width - left - right)
        return round(x, 1), round(height - bottom - (point[1] - low_y) / (high_y - low_y) * (height - top - bottom), 1)

    def line(points: Sequence[Point], kind: str) -> str:
        return f'<polyline class="{kind}" points="{" ".join(f"{x},{y}" for x, y in map(at, points))}"/>'

    parts = []
    for value in _ticks(low_y, high_y):
        _, y = at((low_x, value))
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in _ticks(low_x, high_x, 10):
        x, _ = at((value, low_y))
        parts.append(f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">{value:g}</text>')
    parts += [line(rewards, "raw"), line(_smooth(rewards), "line")]
    for point in scores:
        x, y = at(point)
        anchor, shift = ("start", 9) if point[0] < (low_x + high_x) / 2 else ("end", -9)
        parts.append(f'<circle class="score" cx="{x}" cy="{y}" r="5"><title>step {point[0]:g}: {point[1]:.3f}</title></circle>')
        parts.append(f'<text class="score" x="{x + shift}" y="{y - 8}" text-anchor="{anchor}">{point[1]:.2f}</text>')
    middle = (top + height - bottom) / 2
    parts += [
        f'<text class="reward" x="{left}" y="18">— reward (thin: each step; thick: moving mean)</text>',
        f'<text class="score" x="{width - right}" y="18" text-anchor="end">● validation, greedy answers</text>',
        f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">training step</text>',
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">mean reward</text>',
    ]
    label = html.escape(title)
    rows = "".join(f"<tr><td>{name.replace('_', ' ')}</td><td>{value:,.6g}</td></tr>" for name, value in summary(series).items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{label}</title><style>{_STYLE}</style></head>'
        f'<body><h1>{label}</h1><svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"<table>{rows}</table></body></html>\n"
    )


def _limits(points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Ranges of steps and values, never empty; rewards of 0 to 1 get the whole of that range."""
    steps = [point[0] for point in points] or [0.0]
    values = [point[1] for point in points] or [0.0]
    low_y, high_y = min(0.0, *values), max(values)
    if 0 < high_y <= 1 or high_y == low_y:
        high_y = low_y + 1 if high_y == low_y else 1.0
    return min(steps), max(max(steps), min(steps) + 1), low_y, high_y


def curve_png(series: Sequence[Row], path: Path) -> None:
    """The same curve as a picture of 1,200 x 600 pixels; needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rewards, scores = _points(series, "reward_mean"), _points(series, "eval_score")
    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*_columns(rewards), color="#a9c1f5", linewidth=0.8)
    axes.plot(*_columns(_smooth(rewards)), color="#2457c5", linewidth=2, label="reward (moving mean)")
    axes.plot(*_columns(scores), "o", color="#b4470c", label="validation, greedy answers")
    for step, score in scores:
        axes.annotate(f"{score:.2f}", (step, score), textcoords="offset points", xytext=(0, 8), ha="center", color="#b4470c")
    _, _, low_y, high_y = _limits(rewards + scores)
    axes.set(xlabel="training step", ylabel="mean reward", ylim=(low_y, low_y + (high_y - low_y) * 1.08))
    axes.grid(color="#e4e7ec")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path)


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
