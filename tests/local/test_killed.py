"""A whole run with the real engine whose task, worker and head are killed: it ends with the bits of an undisturbed one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.local.runs import Run, path_in, start

STEPS, SAVE = 120, 20
SETS = (f"train_steps={STEPS}", f"train_save_every={SAVE}", "train_seed=21")


def kill(run: Run, *marks: str) -> None:
    """SIGKILL the run's first process whose command holds every mark."""
    for process in run.processes():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if all(mark in command for mark in marks):
            process.kill()
            return
    raise AssertionError(f"no process with {marks}")


def reached(step: int) -> Callable[[dict[str, Any]], bool]:
    """Whether an event tells of a training step from `step` on."""

    def found(event: dict[str, Any]) -> bool:
        return event["kind"] == "progress" and event.get("of") == STEPS and step <= event["step"] < STEPS

    return found


def test_killed_task_worker_and_head_cost_time_but_no_bit(first: str, store: Path) -> None:
    code, output = start(store, *SETS).finish()
    assert code == 0, output
    undisturbed = path_in(output, "model")

    run = start(store, *SETS, "train_force=true")
    run.wait_for(reached(3))
    kill(run, "kfp.dsl.executor_main", "training_key")
    run.wait_for(
        lambda event: event["kind"] == "task" and event["task"] == "train" and event["state"] == "started" and event["attempt"] == 2
    )
    run.wait_for(reached(SAVE + 5))
    kill(run, "RayTrainWorker")
    run.wait_for(reached(3 * SAVE + 5))
    kill(run, "ray.scripts.scripts", "start")
    code, output = run.finish()
    assert code == 0, output

    assert path_in(output, "model") == undisturbed, "the content digest names the folder"
    run_id = (run.session() / "run_id").read_text()
    attempts = {path.name: path for path in store.glob(f"checkpoints/*/{run_id}-a*")}
    assert sorted(attempts) == [f"{run_id}-a{number}" for number in (1, 2, 3)]
    steps = {
        name: [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()] for name, path in attempts.items()
    }
    assert all(max(Counter(found).values()) == 1 for found in steps.values()), "the adopted job wrote each step once"
    assert steps[f"{run_id}-a2"][0] % SAVE == 1
    assert steps[f"{run_id}-a3"][0] % SAVE == 1
    assert steps[f"{run_id}-a3"][-1] == STEPS
