"""Whole runs of the committed pipeline, each in a process of its own, in one store whose path has a space in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tuneline.cli.session import SESSION_VARIABLE
from tuneline.rayjobs.processes import RUN_MARKER

ROOT = Path(__file__).resolve().parents[2]
#: A training that is over in seconds; what it learns does not matter.
SHORT = ("train_steps=4", "train_save_every=2")


@dataclass
class Run:
    """A `tuneline run` that goes on or has ended."""

    process: subprocess.Popen[str]
    store: Path

    def finish(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=400)
        return self.process.returncode, output

    def session(self) -> Path:
        """The folder of this run's session."""
        marked = [path for path in (self.store / "sessions").iterdir() if (path / "pid").read_text() == str(self.process.pid)]
        return marked[0]

    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.session() / "events.jsonl").read_text().splitlines()
        except (OSError, IndexError):
            return []
        return [json.loads(line) for line in lines]

    def wait_for(self, found: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
        """The first event of that kind; real processes take real time, so this polls, bounded."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for event in self.events():
                if found(event):
                    return event
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.05)
        raise AssertionError(f"no such event within {seconds} s; seen: {self.events()}")

    def processes(self) -> list[psutil.Process]:
        """Everything that carries the marks of this run."""
        identity = self.session().name
        run = self.session() / "run_id"
        run_id = run.read_text() if run.exists() else "?"
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if process.status() != psutil.STATUS_ZOMBIE and (
                    environment.get(SESSION_VARIABLE) == identity or environment.get(RUN_MARKER) == run_id
                ):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


def interpreter(folder: Path) -> str:
    """This interpreter by a path with a space in it, as in a checkout in such a folder."""
    link = folder / "the venv"
    if not link.is_symlink():
        link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def start(store: Path, *sets: str) -> Run:
    """Start `tuneline run` in a process group of its own, as a terminal would."""
    arguments = [argument for value in (*SHORT, *sets) for argument in ("--set", value)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUNELINE_", "RAY_"))}
    process = subprocess.Popen(
        [interpreter(store.parent), "-m", "tuneline.cli.main", "run", "--store", str(store), *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    return Run(process, store)


def path_in(output: str, label: str) -> Path:
    """The path that a run printed behind a label."""
    line = next(line for line in output.splitlines() if line.startswith(label))
    return Path(line.removeprefix(label).strip().split(" (")[0])


def last_log(store: Path) -> str:
    logs = sorted(store.glob("sessions/*/run.log"))
    return logs[-1].read_text()[-5000:] if logs else ""
