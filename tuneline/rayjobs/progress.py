"""How far a training is: the metrics file of an attempt, read as it grows, told as events and log lines."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import event, get_logger
from tuneline.engines.base import Engine

_log = get_logger("train")
_RECENT_STEPS = 20
_MOST_EVENTS = 1000


class Progress:
    """Reads new metrics at each call and returns the last step.

    Args:
        metrics: The file with the attempt's metrics, which may not exist yet: the engine's own, or the saved log of its job.
        total: Steps of the whole training.
        step: The step that the attempt starts from.
        series: Where rows that come from a log are kept, one JSON object a line; None where the engine writes them itself.
    """

    def __init__(
        self, engine: Engine, metrics: Path, *, total: int, step: int = 0, series: Path | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._follow, self._metrics, self._total, self._series, self._clock = engine.follow(step), metrics, total, series, clock
        self.step = step
        #: Row of each step so far, by step.
        self.rows: dict[int, dict[str, Any]] = {}
        self._position = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._last: tuple[int, float] | None = None

    def __call__(self) -> int:
        rows = self._follow(self._new_lines())
        for row in rows:
            self._take(row)
        if rows and self._series:
            with open(self._series, "a", encoding="utf-8") as series:
                series.writelines(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        # A task that re-attaches tells again what its forerunner told; the reader of events goes by the step.
        for row in rows[-_MOST_EVENTS:]:
            event("progress", **self._fields(row))
        if rows:
            _log.info("%s", self._line(rows[-1]))
        return self.step

    def _new_lines(self) -> list[str]:
        try:
            with open(self._metrics, "rb") as handle:
                handle.seek(self._position)
                data = handle.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def _take(self, row: dict[str, Any]) -> None:
        step, now = int(row["step"]), self._clock.monotonic()
        if seconds := row.get("step_time"):
            self._seconds.append(float(seconds))
        elif self._last is not None and step > self._last[0]:
            self._seconds.append((now - self._last[1]) / (step - self._last[0]))
        self._last = (step, now)
        self.rows[step] = row
        self.step = max(self.step, step)

    def _fields(self, row: dict[str, Any]) -> dict[str, Any]:
        step = int(row["step"])
        eta = (self._total - step) * sum(self._seconds) / len(self._seconds) if self._seconds else None
        fields = {
            "step": step,
            "of": self._total,
            "reward": row.get("reward_mean"),
            "tokens_per_s": row.get("tokens_per_s"),
            "eta_s": eta,
            "eval_score": row.get("eval_score"),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _line(self, row: dict[str, Any]) -> str:
        fields = self._fields(row)
        parts = [f"step {fields['step']}/{self._total}"]
        for name, label, form in (
            ("reward", "reward", "{:.3f}"),
            ("eval_score", "validation", "{:.3f}"),
            ("tokens_per_s", "tokens/s", "{:.0f}"),
            ("eta_s", "left", "{:.0f} s"),
        ):
            if name in fields:
                parts.append(f"{label} {form.format(fields[name])}")
        return "  ".join(parts)
