"""What a person sees of a run while it goes: one line a task, and the training's step, reward, speed and time left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuneline.core.clock import SYSTEM

_SIGNS = {"cached": ("≡", "blue"), "started": ("…", "cyan"), "finished": ("✓", "green"), "failed": ("✗", "red")}


class Events:
    """New events of a growing events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Every whole line since the last call."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as handle:
            handle.seek(self._offset)
            for line in handle:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                with contextlib.suppress(ValueError):  # a full disk cuts a line, and the next one is joined to it
                    yield json.loads(line)


class View:
    """The state of a run, drawn live on a terminal and as plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self.tasks: dict[str, dict[str, Any]] = {}
        self._progress: dict[str, Any] = {}
        self._told = -1

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._draw())
            self._live.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Take one event in."""
        if event["kind"] == "task":
            known = self.tasks.get(event["task"], {})
            self.tasks[event["task"]] = {
                **known,
                **event,
                "since": event["at"] if event["state"] == "started" else known.get("since", event["at"]),
            }
            self._progress = {}
            self._told = -1
        elif event["kind"] == "progress":
            self._progress = event
        if not self._live:
            self._tell(event)

    def refresh(self) -> None:
        """Draw again."""
        if self._live:
            self._live.update(self._draw())

    def _tell(self, event: dict[str, Any]) -> None:
        if event["kind"] == "task" and event["state"] != "started":
            self._console.print(self._line(event["task"]), soft_wrap=True)
        elif event["kind"] == "progress" and event.get("of"):
            tenth = 10 * event["step"] // event["of"]
            if tenth > self._told:
                self._told = tenth
                self._console.print(f"      {_measures(event)}")

    def _line(self, name: str) -> Text:
        task = self.tasks[name]
        sign, style = _SIGNS[task["state"]]
        until = task["at"] if task["state"] != "started" else SYSTEM.now()
        line = Text.assemble((f"{sign} ", style), f"{name:<22}", (f"{until - task['since']:6.1f} s  ", "dim"))
        if task["state"] == "failed":
            line.append(task["error"].splitlines()[0], style="red")
        else:
            notes = (task.get("notes") or {}).items()
            line.append(", ".join(f"{key} {value}" for key, value in notes if "/" not in str(value)), style="dim")
        return line

    def _draw(self) -> Group:
        rows: list[Any] = [self._line(name) for name in self.tasks]
        if self._progress.get("of"):
            grid = Table.grid(padding=(0, 2))
            grid.add_row(ProgressBar(total=self._progress["of"], completed=self._progress["step"], width=30), _measures(self._progress))
            rows.append(grid)
        return Group(*rows)


def _measures(event: dict[str, Any]) -> str:
    parts = [f"step {event['step']}/{event['of']}"]
    for key, form in (
        ("reward", "reward {:.3f}"),
        ("loss", "loss {:.3f}"),
        ("tokens_per_s", "{:,.0f} tokens/s"),
        ("eta_s", "{:.0f} s left"),
    ):
        if event.get(key) is not None:
            parts.append(form.format(event[key]))
    return "  ".join(parts)
