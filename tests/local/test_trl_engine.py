"""GRPO on two workers that are killed: what a resumed training computes is what an undisturbed one computes, bit by bit.

The undisturbed training runs on a Ray of its own, the disturbed one on a run's real head: its attempt 1 loses a worker, attempt 2
its driver, attempt 3 ends. A third training goes on from a checkpoint of two workers with one, a user's reward and a KL term.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.local.harness import Harness, harness, is_loopback, wait_until
from tuneline.config.spec import RunSpec
from tuneline.engines import arithmetic
from tuneline.engines.base import Checkpoint, TrainingInputs
from tuneline.engines.trl import TrlEngine

ENGINE = TrlEngine()
STEPS, EVERY = 90, 30
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SPEC = {
    "train_steps": STEPS,
    "train_save_every": EVERY,
    "train_learning_rate": 5e-4,
    "train_prompt_tokens": 16,
    "train_response_tokens": 4,
    "train_reward": "exact",
    "gpu_ready_minutes": 2.0,
}


@dataclass
class Story:
    """What the trainings left behind."""

    undisturbed: Path
    resharded: Path
    run: Harness
    checkpoint: dict[str, Any] = field(default_factory=dict)
    listeners: dict[str, str] = field(default_factory=dict)

    def steps(self, folder: Path) -> list[int]:
        return [row["step"] for row in rows(folder)]

    def attempt(self, number: int) -> Path:
        return Path(self.run.store.attempt(self.run.training_key, f"{self.run.run_id}-a{number}"))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def train_alone(spec: dict[str, Any], inputs: TrainingInputs) -> str:
    """One attempt on a Ray of its own; its output."""
    job = ENGINE.build_job(RunSpec.build(spec), inputs)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(job.argv, env={**environment, **job.env, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    from tuneline.engines import tiny_qwen2

    root = tmp_path_factory.mktemp("a store")
    base, data, code = root / "base", root / "data", root / "code"
    tiny_qwen2.write_model(base, 0, lambda step, of, loss: None)
    arithmetic.write_dataset(data, 0)
    code.mkdir()
    (code / "mine.py").write_text(
        "def close(completions, ground_truths):\n    return [float(c in t) for c, t in zip(completions, ground_truths)]\n"
    )

    undisturbed, resharded = root / "alone" / "undisturbed", root / "alone" / "resharded"
    inputs = {"base_dir": str(base), "dataset_dir": str(data), "code_dir": str(code)}
    train_alone(SPEC, TrainingInputs(job_name="undisturbed", attempt_dir=str(undisturbed), **inputs))
    train_alone(
        {**SPEC, "gpu_workers": 1, "train_kl_coef": 0.05, "train_reward": "mine:close", "train_code_uri": str(code)},
        TrainingInputs("resharded", attempt_dir=str(resharded), resume_from=str(undisturbed / "step_60"), **inputs),
    )
    with harness(root, f"tltrl{os.getpid()}", engine="tuneline.engines.trl:TrlEngine", spec=SPEC, inputs=inputs) as run:
        yield play(Story(undisturbed, resharded, run))


def play(story: Story) -> Story:
    run = story.run
    run.run("launch", seconds=120)
    task = run.start("train")
    wait_until(lambda: run.step(1) > EVERY + 3, "a step behind the first checkpoint of attempt 1", 120)
    story.listeners = run.listeners()
    run.kill("worker", attempt=1, match="RayTrainWorker")
    wait_until(lambda: run.step(2) > EVERY + 3, "a step of attempt 2", 120)
    run.kill("driver", attempt=2)
    story.checkpoint = task.result(300)
    run.run("release")
    return story


def tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of a DCP, whole."""
    import torch
    import torch.distributed.checkpoint as dcp

    metadata = dcp.FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    state = {key: torch.empty(tuple(entry.size), dtype=entry.properties.dtype) for key, entry in metadata.items()}
    dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    return {key: value.numpy().tobytes() for key, value in state.items()}


def checkpoints(folder: Path) -> list[Checkpoint]:
    return [found for found in ENGINE.find_checkpoints(str(folder.parent)) if Path(found.path).parent == folder]


def test_a_killed_worker_and_a_killed_driver_end_their_attempts_and_nothing_else_tries_again(story: Story) -> None:
    assert len(story.run.attempts()) == 3
    first, second, third = (story.steps(story.attempt(number)) for number in (1, 2, 3))
    assert first[0] == 0
    assert first[-1] < STEPS
    assert second[0] == max(found.step for found in checkpoints(story.attempt(1)) if found.complete) + 1
    assert second[-1] < STEPS
    assert third[-1] == STEPS
    for steps in (first, second, third):
        assert steps == list(range(steps[0], steps[-1] + 1))


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_a_training_that_was_killed_twice_ends_bit_equal_to_an_undisturbed_one(story: Story, part: str) -> None:
    undisturbed, disturbed = tensors(story.undisturbed / f"step_{STEPS}" / part), tensors(Path(story.checkpoint["path"]) / part)
    assert undisturbed
    assert undisturbed == disturbed
    assert undisturbed != tensors(story.undisturbed / f"step_{EVERY}" / part)


def test_metrics_of_all_attempts_are_those_of_an_undisturbed_training(story: Story) -> None:
    def computed(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in ("step_time", "tokens_per_s")}

    series = {row["step"]: computed(row) for number in (1, 2, 3) for row in rows(story.attempt(number))}
    assert series == {row["step"]: computed(row) for row in rows(story.undisturbed)}
    assert [row["step"] for row in rows(story.undisturbed) if "eval_score" in row] == [0, STEPS]
    assert {
        "reward_mean",
        "reward_std",
        "entropy",
        "response_length",
        "grad_norm",
        "learning_rate",
        "loss",
        "tokens_per_s",
        "step_time",
    } <= set(rows(story.undisturbed)[-1])


def test_it_learns(story: Story) -> None:
    first, last = rows(story.undisturbed)[0], rows(story.undisturbed)[-1]
    assert last["eval_score"] - first["eval_score"] >= 0.3


def test_every_checkpoint_is_complete_sharded_and_like_the_last_attempts(story: Story) -> None:
    assert [(found.step, found.complete, found.world_size) for found in checkpoints(story.undisturbed)] == [
        (step, True, 2) for step in range(EVERY, STEPS + 1, EVERY)
    ]
    step = Path(story.checkpoint["path"])
    assert {path.name for path in (step / "weights").iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    for name in ("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "generation_config.json"):
        assert (step / name).read_bytes() == (story.run.root / "base" / Path(name).name).read_bytes()
    assert not list(story.undisturbed.glob(".*"))


def test_one_worker_goes_on_from_the_checkpoint_of_two(story: Story) -> None:
    assert story.steps(story.resharded) == list(range(61, STEPS + 1))
    assert [(found.step, found.complete, found.world_size) for found in checkpoints(story.resharded)] == [(STEPS, True, 1)]
    assert all(row["kl"] > 0 for row in rows(story.resharded))
    assert tensors(story.resharded / f"step_{STEPS}" / "weights") != tensors(story.undisturbed / f"step_{STEPS}" / "weights")


def test_no_listener_is_outside_loopback(story: Story) -> None:
    assert any("RayTrainWorker" in name for name in story.listeners)
    assert {name: address for name, address in story.listeners.items() if not is_loopback(address)} == {}
