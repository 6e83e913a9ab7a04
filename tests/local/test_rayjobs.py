"""Training on a real Ray head that is killed in every way, in one run that is played once; each test reads what it left.

The training has 40 steps with a checkpoint every 10. Attempt 1 is held at step 13, 2 at 17, 3 at 23; 4 runs to the end.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.local.harness import Harness, harness, is_loopback, wait_until
from tests.local.standin import state_after
from tuneline.rayjobs.head import Head
from tuneline.rayjobs.processes import run_processes

HELD = {1: 13, 2: 17, 3: 23}


@dataclass
class Story:
    """What the run left behind, and what was seen while it ran."""

    run: Harness
    heads: list[Head] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    jobs: list[list[str]] = field(default_factory=list)
    listeners: list[dict[str, str]] = field(default_factory=list)
    token_mode: int = 0
    checkpoint: dict[str, Any] = field(default_factory=dict)
    again: dict[str, Any] = field(default_factory=dict)
    after_release: list[str] = field(default_factory=list)
    after_killed_head: list[str] = field(default_factory=list)
    done_launch: str = "not launched"

    def log(self, attempt: int) -> list[str]:
        return Path(self.run.store.run_logs(self.run.run_id), f"{self.run.run_id}-a{attempt}.log").read_text().splitlines()

    def steps(self, attempt: int) -> list[int]:
        path = Path(self.run.store.attempt(self.run.training_key, f"{self.run.run_id}-a{attempt}"), "metrics.jsonl")
        return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("a store")
    run_id = f"tltest{os.getpid()}"
    (root / "hold.json").write_text(json.dumps({f"{run_id}-a{attempt}": step for attempt, step in HELD.items()}))
    spec = {"train_steps": 40, "train_save_every": 10, "train_attempts": 4, "gpu_workers": 2, "gpu_ready_minutes": 1.0}
    inputs = {"base_dir": str(root), "dataset_dir": "", "code_dir": ""}
    with harness(root, run_id, engine="tests.local.standin:StandInEngine", spec=spec, inputs=inputs) as run:
        yield play(Story(run))


def play(story: Story) -> Story:
    run = story.run
    launched = run.start("launch")
    wait_until(lambda: Path(run.store.raycluster(run.run_id)).exists() and run.head().pid > 0, "the record")
    launched.kill()
    story.records.append(run.run("launch"))
    story.heads.append(run.head())
    story.token_mode = stat.S_IMODE(os.stat(run.head().token_path).st_mode)

    first = run.start("train")
    wait_until(lambda: run.step(1) == HELD[1], "the hold of attempt 1")
    story.listeners.append(run.listeners())
    first.kill()
    second = run.start("train")
    wait_until(lambda: second.said("watching job"), "the second task to watch")
    story.jobs.append(run.jobs())
    run.kill("driver", attempt=1)

    wait_until(lambda: run.step(2) == HELD[2], "the hold of attempt 2")
    run.kill("worker", attempt=2)

    wait_until(lambda: run.step(3) == HELD[3], "the hold of attempt 3")
    story.jobs.append(run.jobs())
    run.kill("head")

    story.checkpoint = second.result(60)
    story.heads.append(run.head())
    story.jobs.append(run.jobs())
    story.again = run.run("train")
    story.done_launch = run.run("launch")
    run.kill("head")
    wait_until(lambda: not run.head().answers(), "the head to stop answering")
    story.after_killed_head = [f"{process.pid} {process.name()}" for process in run_processes(run.run_id)]
    run.run("release")
    story.after_release = [f"{process.pid} {process.name()}" for process in run_processes(run.run_id)]
    run.run("release")
    return story


def test_a_killed_launch_is_adopted_by_the_next(story: Story) -> None:
    assert story.records == [story.run.store.raycluster(story.run.run_id)]
    pids = {line.split("pid ")[1] for line in (story.run.root / "1-launch.out").read_text().splitlines() if "adopting" in line}
    assert pids == {f"{story.heads[0].pid})"}


def test_a_killed_task_leaves_its_job_and_the_next_task_adopts_it(story: Story) -> None:
    assert story.jobs[0] == [f"{story.run.run_id}-a1"]
    assert story.steps(1) == list(range(1, 14))


def test_a_killed_driver_or_worker_resumes_from_the_newest_complete_checkpoint(story: Story) -> None:
    assert story.steps(2) == list(range(11, 18))
    assert story.steps(3) == list(range(11, 24))
    assert story.jobs[1] == [f"{story.run.run_id}-a{attempt}" for attempt in (1, 2, 3)]


def test_a_killed_head_is_replaced_and_training_goes_on(story: Story) -> None:
    assert story.heads[0].pid != story.heads[1].pid
    assert story.steps(4) == list(range(21, 41))
    assert story.jobs[2] == [f"{story.run.run_id}-a4"]


def test_the_state_equals_that_of_an_undisturbed_training(story: Story) -> None:
    assert story.checkpoint["step"] == 40
    assert story.checkpoint["complete"]
    assert Path(story.checkpoint["path"], "state").read_text() == state_after(40)


def test_a_finished_training_is_found_and_starts_nothing(story: Story) -> None:
    assert story.again == story.checkpoint
    assert story.done_launch == ""
    assert len(story.run.attempts()) == 4


def test_saved_logs_have_every_line_once_over_re_attachment_and_a_lost_head(story: Story) -> None:
    for attempt, steps in ((1, range(1, 14)), (2, range(11, 18)), (3, range(11, 24)), (4, range(21, 41))):
        assert [line for line in story.log(attempt) if line.startswith("stepped")] == [f"stepped {step} ü" for step in steps]


def test_progress_is_told_as_events(story: Story) -> None:
    told = story.run.events("progress")
    assert told[-1]["step"] == told[-1]["of"] == 40
    assert told[-1]["reward"] == 1.0
    assert told[-1]["eta_s"] == 0.0
    assert {event["step"] for event in told} >= set(range(1, 41))


def test_everything_listens_on_loopback_only(story: Story) -> None:
    listeners = story.listeners[0]
    assert {name: address for name, address in listeners.items() if not is_loopback(address)} == {}
    assert any("ray::Worker" in name for name in listeners)
    ports = {name.rsplit(":", 1)[1] for name in listeners}
    assert {str(port) for port in story.heads[0].ports.values()} <= ports


def test_the_token_is_private(story: Story) -> None:
    assert story.token_mode == 0o600


def test_release_leaves_nothing_even_after_the_head_was_killed(story: Story) -> None:
    assert story.after_killed_head != []
    assert story.after_release == []
    assert not Path(story.run.store.raycluster(story.run.run_id)).exists()
    assert [head.temp_dir for head in story.heads if Path(head.temp_dir).exists()] == []
