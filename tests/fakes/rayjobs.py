"""Time, jobs and a cluster that do as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.local.standin import StandInEngine
from tuneline.config.spec import RunSpec
from tuneline.core.clock import Deadline
from tuneline.core.errors import ClusterError
from tuneline.engines.base import JobRequest, TrainingInputs
from tuneline.rayjobs.base import JobState, JobStatus


class FakeClock:
    """Sleeping moves time on at once and runs what was planned for the moments passed."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.time = start
        self.plans: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        due = [plan for plan in self.plans if plan[0] <= self.time]
        self.plans = [plan for plan in self.plans if plan[0] > self.time]
        for _, act in due:
            act()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.plans.append((self.time + seconds, act))


@dataclass
class FakeRunner:
    """A head's jobs: a job's state is what the test puts there."""

    jobs: dict[str, JobStatus] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    requests: dict[str, JobRequest] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    lost: bool = False
    refuses: bool = False
    on_submit: Callable[[str], None] = lambda name: None
    state_after_stop: JobState = JobState.STOPPED

    def submit(self, name: str, request: JobRequest) -> bool:
        if self.refuses:
            raise ClusterError("refused")
        if name in self.jobs:
            return False
        self.jobs[name] = JobStatus(JobState.RUNNING)
        self.requests[name] = request
        self.on_submit(name)
        return True

    def status(self, name: str) -> JobStatus:
        if self.lost:
            return JobStatus(JobState.HEAD_LOST, "the Ray head is gone")
        return self.jobs.get(name, JobStatus(JobState.UNKNOWN))

    def logs(self, name: str, offset: int) -> tuple[str, int]:
        text = self.output.get(name, "")
        return text[offset:], len(text)

    def stop(self, name: str) -> None:
        self.stopped.append(name)
        if name in self.jobs and not self.jobs[name].state.terminal:
            self.jobs[name] = JobStatus(self.state_after_stop)


@dataclass
class FakeCluster:
    """The run's cluster; `start` makes the runner of a new head."""

    start: Callable[[], FakeRunner] = FakeRunner
    current: FakeRunner | None = None
    calls: list[str] = field(default_factory=list)
    record: str = "the record"

    def attach(self) -> FakeRunner | None:
        return self.current

    def ensure(self) -> FakeRunner:
        self.calls.append("ensure")
        if self.current is None or self.current.lost:
            return self.renew()
        return self.current

    def renew(self) -> FakeRunner:
        self.calls.append("renew")
        self.current = self.start()
        return self.current

    def remove(self, deadline: Deadline) -> None:
        self.calls.append("remove")
        self.current = None


class FakeEngine(StandInEngine):
    """The stand-in's files, and a job request that shows what the attempt was given."""

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        return JobRequest(("train", inputs.attempt_dir), metadata={"resume_from": inputs.resume_from, "base_dir": inputs.base_dir})


def write_checkpoint(attempt_dir: Path, step: int, *, complete: bool = True) -> Path:
    """A checkpoint as the stand-in's job writes it."""
    path = attempt_dir / f"step_{step}"
    path.mkdir(parents=True)
    if complete:
        (path / "COMPLETE").touch()
    return path


def write_metrics(attempt_dir: Path, step: int) -> None:
    """One more line of metrics."""
    attempt_dir.mkdir(parents=True, exist_ok=True)
    with open(attempt_dir / "metrics.jsonl", "a") as handle:
        handle.write(json.dumps({"step": step, "reward_mean": 0.5}) + "\n")
