"""Ctrl-C and worse: whatever happens to a run, no process of it is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.local.runs import Run, start


def gone(run: Run, seconds: float = 40) -> bool:
    until = time.monotonic() + seconds
    while run.processes() and time.monotonic() < until:
        time.sleep(0.1)
    return run.processes() == []


@pytest.mark.parametrize("how", ["group", "runner"])
def test_ctrl_c_while_training_leaves_nothing(how: str, first: str, store: Path) -> None:
    run = start(store, "train_steps=500", "train_save_every=250", f"train_seed={ {'group': 11, 'runner': 12}[how] }".replace(" ", ""))
    run.wait_for(lambda event: event["kind"] == "progress" and event.get("step", 0) >= 1 and event.get("of") == 500)
    assert any("ray" in " ".join(process.cmdline()) for process in run.processes())
    os.killpg(run.process.pid, signal.SIGINT) if how == "group" else run.process.send_signal(signal.SIGINT)
    code, output = run.finish()
    assert code == 130, output
    assert run.processes() == []
    assert "no process of the run is left" in output
    assert not (store / "runs" / (run.session() / "run_id").read_text() / "raycluster.json").exists()


def test_ctrl_c_while_ray_starts_leaves_nothing(first: str, store: Path) -> None:
    run = start(store, "train_seed=13")
    run.wait_for(lambda event: event["kind"] == "task" and event["task"] == "launch_raycluster")
    time.sleep(0.7)  # into the start of the head's processes
    os.killpg(run.process.pid, signal.SIGINT)
    code, output = run.finish()
    assert code == 130, output
    assert run.processes() == []


def test_a_second_ctrl_c_does_not_cut_the_cleanup_short(first: str, store: Path) -> None:
    run = start(store, "train_steps=500", "train_seed=14")
    run.wait_for(lambda event: event["kind"] == "progress" and event.get("of") == 500)
    for _ in range(3):
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.2)
    code, output = run.finish()
    assert code == 130, output
    assert run.processes() == []


def test_a_killed_runner_takes_everything_with_it(first: str, store: Path) -> None:
    run = start(store, "train_steps=500", "train_seed=15")
    run.wait_for(lambda event: event["kind"] == "progress" and event.get("of") == 500)
    run.process.kill()
    run.process.wait()
    assert gone(run), [process.cmdline() for process in run.processes()]
