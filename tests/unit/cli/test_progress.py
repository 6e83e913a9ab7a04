"""The view of a run: one line a task, and the training's measures."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tuneline.cli.progress import Events, View


def lines(events: list[dict[str, object]]) -> list[str]:
    out = io.StringIO()
    view = View(Console(file=out, width=60))
    with view:
        for event in events:
            view.show(event)
    return out.getvalue().splitlines()


def test_plain_output_has_a_line_a_task_and_one_for_each_tenth_of_the_training() -> None:
    steps = [
        {"kind": "progress", "at": 1.0, "step": step, "of": 100, "reward": 0.5, "tokens_per_s": 1234.0, "eta_s": 9.0} for step in range(101)
    ]
    shown = lines(
        [
            {"kind": "task", "task": "train", "state": "started", "at": 0.0},
            *steps,
            {"kind": "task", "task": "train", "state": "finished", "at": 12.0, "notes": {"step": "100", "checkpoint": "/a/b"}},
            {"kind": "task", "task": "convert", "state": "failed", "at": 13.0, "error": "first line\nsecond"},
        ]
    )
    assert len(shown) == 11 + 2
    assert shown[0].split() == ["step", "0/100", "reward", "0.500", "1,234", "tokens/s", "9", "s", "left"]
    assert shown[-2].split() == ["✓", "train", "12.0", "s", "step", "100"]
    assert "first line" in shown[-1]
    assert "second" not in shown[-1]


def test_a_line_that_a_full_disk_cut_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": {"c"{"d": 2}\n\xff\n{"e": 3}\n')
    assert list(Events(path).read()) == [{"a": 1}, {"e": 3}]


def test_events_come_once_and_only_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    assert list(events.read()) == []
    path.write_text(json.dumps({"a": 1}) + "\n" + '{"b"')
    assert list(events.read()) == [{"a": 1}]
    with open(path, "a") as handle:
        handle.write(": 2}\n")
    assert list(events.read()) == [{"b": 2}]
    assert list(events.read()) == []
