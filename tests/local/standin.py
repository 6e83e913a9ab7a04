"""A stand-in engine whose job trains nothing but behaves as one: steps in a Ray worker, metrics, checkpoints with a marker.

Its state is a hash chain over the steps, so that a resumed training that repeats or skips a step ends elsewhere.
The test holds an attempt at a step with `<root>/hold.json`: {job name: step}.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.engines.base import Checkpoint, Follow, JobRequest, TrainingInputs

STEP_SECONDS = 0.02


def state_after(step: int) -> str:
    """The state of an undisturbed training."""
    state = ""
    for number in range(1, step + 1):
        state = hashlib.sha256(f"{state}/{number}".encode()).hexdigest()
    return state


class StandInEngine:
    """Engine of the tests."""

    name = "stand-in"
    metrics_in_log = False

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        plan = {
            "attempt_dir": inputs.attempt_dir,
            "resume_from": inputs.resume_from,
            "job_name": inputs.job_name,
            "hold": str(Path(inputs.base_dir, "hold.json")),
            "steps": spec.train_steps,
            "save_every": spec.train_save_every,
        }
        return JobRequest((sys.executable, __file__, json.dumps(plan)))

    def parse_metrics(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines]

    def follow(self, start: int = 0) -> Follow:
        return self.parse_metrics

    def inspect_checkpoints(self, root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
        return self.find_checkpoints(root)

    def why_not_resume(self, spec: RunSpec, checkpoint: Checkpoint) -> str:
        return ""

    def find_checkpoints(self, root: str) -> list[Checkpoint]:
        found = []
        for path in Path(root).glob("*/step_*"):
            complete = (path / "COMPLETE").exists()
            found.append(Checkpoint(int(path.name.removeprefix("step_")), str(path), complete, "" if complete else "no marker", 1))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def expected_final_step(self, spec: RunSpec) -> int:
        return spec.train_steps

    def code_digest(self) -> str:
        return "0" * 64


def main(plan: dict[str, Any]) -> None:
    import ray

    ray.init(log_to_driver=False)

    @ray.remote
    class Worker:
        """One training process."""

        def __init__(self) -> None:
            self.step, self.state = 0, ""
            if plan["resume_from"]:
                self.state = Path(plan["resume_from"], "state").read_text()
                self.step = int(Path(plan["resume_from"]).name.removeprefix("step_"))

        def train_step(self) -> int:
            self.step += 1
            self.state = hashlib.sha256(f"{self.state}/{self.step}".encode()).hexdigest()
            time.sleep(STEP_SECONDS)
            return self.step

        def save(self, path: str) -> None:
            folder = Path(path)
            folder.mkdir()
            (folder / "state").write_text(self.state)
            (folder / "COMPLETE").touch()

    folder, hold = Path(plan["attempt_dir"]), Path(plan["hold"])
    worker = Worker.remote()  # type: ignore[attr-defined]
    step = 0
    while step < plan["steps"]:
        step = ray.get(worker.train_step.remote())
        print(f"stepped {step} ü", flush=True)
        with open(folder / "metrics.jsonl", "a") as metrics:
            metrics.write(json.dumps({"step": step, "reward_mean": step / plan["steps"], "tokens_per_s": 100.0}) + "\n")
        while hold.exists() and json.loads(hold.read_text()).get(plan["job_name"]) == step:
            ray.get(worker.__ray_ready__.remote())
            time.sleep(0.1)
        if step % plan["save_every"] == 0 or step == plan["steps"]:
            ray.get(worker.save.remote(str(folder / f"step_{step}")))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
