"""How far a training is: the metrics file of an attempt, read as it grows, told as events and log lines."""

from __future__ import annotations

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
        metrics: The attempt's metrics file, one JSON object a line; may not exist yet.
        total: Steps of the whole training.
        step: The step that the attempt starts from.
    """

    def __init__(self, engine: Engine, metrics: Path, *, total: int, step: int = 0, clock: Clock = SYSTEM) -> None:
        self._engine, self._metrics, self._total, self._clock = engine, metrics, total, clock
        self.step = step
        self._position = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._last: tuple[int, float] | None = None

    def __call__(self) -> int:
        rows = self._engine.parse_metrics(self._new_lines())
        for row in rows:
            self._take(row)
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
