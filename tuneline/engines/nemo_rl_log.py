"""NeMo RL's console: blocks of lines, `  • Loss: 0.0123`, printed by the driver. Only some lines name the step.

========================= Step 3/20 =========================   starts a step; the number starts again with every epoch
▶ Starting validation at step 10...  …  • Accuracy: 0.5000      stands between the header and the results of its step
📊 Training Results:  • Loss: …  • Avg Reward: …  ⏱️  Timing:  • Total step time: …  🔍 Performance Metrics: …
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuneline.engines.console import NUMBER, Row, clean, number

#: Our names and the labels of NeMo RL; what has no name of ours stands under its label.
TRAINING = {
    "Loss": "loss",
    "Avg Reward": "reward_mean",
    "Avg Total Reward": "reward_mean",
    "Mean Generation Length": "response_length",
    "Total step time": "step_time",
    "E2E (Tokens/sec)": "tokens_per_s",
}
VALIDATION = {"Accuracy": "eval_score"}
_HEADER = re.compile(r"={5,} Step \d+/\d+ ={5,}")
_EPOCH = re.compile(r"={5,} Epoch \d+/\d+ ={5,}")
_NAMED = re.compile(r"(?:▶ Starting validation at|Saving checkpoint for) step (?P<step>\d+)\.\.\.")
_SECTIONS = {"Training Results:": TRAINING, "Validation Results:": VALIDATION, "Validation Timing:": {}}
_ITEM = re.compile(rf"\s+[•-] (?P<label>[^:]+): (?P<value>{NUMBER})(?:s| tokens|%)?(?: \(.*\))?\s*")


class Follower:
    """Reads lines as they come and gives each step's row as it grows.

    Others print between the driver's lines and Ray prints some lines twice: a line counts for the process that printed it.

    Args:
        start: The step from which the attempt resumed.
    """

    def __init__(self, start: int = 0) -> None:
        self._rows: dict[int, Row] = {}
        self._printers: dict[str, _Printer] = {}
        self._start = start

    def __call__(self, lines: Iterable[str]) -> list[Row]:
        """The steps that these lines complete or change, by step."""
        changed: set[int] = set()
        for source, text in clean(lines):
            found = self._printers.setdefault(source, _Printer(self._start)).take(text)
            if found is None:
                continue
            step, name, value = found
            row = self._rows.setdefault(step, {"step": step})
            if name not in row:
                row[name] = value
                changed.add(step)
        return [dict(self._rows[step]) for step in sorted(changed)]


def parse(lines: Iterable[str], start: int = 0) -> list[Row]:
    """One row a step, by step."""
    return Follower(start)(lines)


class _Printer:
    """Where one process is in its output."""

    def __init__(self, start: int) -> None:
        self._step, self._header = start, ""
        self._section: dict[str, str] | None = None

    def take(self, text: str) -> tuple[int, str, float] | None:
        """The step, name and value that this line tells."""
        if _HEADER.search(text):
            # A header that is printed twice starts one step.
            self._step += text.strip() != self._header
            self._header, self._section = text.strip(), None
        elif _EPOCH.search(text):
            self._header = ""
        elif found := _NAMED.search(text):
            # Not below: the validation before a resumed attempt's first step may call it step 0.
            self._step = max(self._step, int(found["step"]))
        elif section := next((title for title in _SECTIONS if title in text), None):
            self._section = _SECTIONS[section]
        elif self._section is not None and (item := _ITEM.fullmatch(text)):
            value = number(item["value"])
            label = item["label"].strip()
            name = self._section.get(label, label if self._section is TRAINING else "")
            return (self._step, name, value) if name and value is not None else None
        return None
