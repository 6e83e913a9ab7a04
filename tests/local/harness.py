"""Real tasks on a real Ray head: start them as processes, kill by role, look at what the run has open.

For any engine: `Harness(root, run_id, engine="module:Class", spec={...}, inputs={...})`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Deadline
from tuneline.core.log import EVENTS_VARIABLE
from tuneline.rayjobs.head import Head, read_head, stop_head
from tuneline.rayjobs.processes import job_processes, run_processes

REPOSITORY = Path(__file__).resolve().parents[2]
Role = Literal["head", "driver", "worker"]


@dataclass
class TaskProcess:
    """A task that runs; its output is in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self, text: str) -> bool:
        return text in self.output.read_text()

    def result(self, seconds: float) -> Any:
        """What the task returned; fails with its output if it does not end well in time."""
        code = self.process.wait(timeout=seconds)
        text = self.output.read_text()
        assert code == 0, f"exit {code}:\n{text}"
        return json.loads(text.splitlines()[-1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Harness:
    """One run in a store folder."""

    root: Path
    run_id: str
    engine: str
    spec: dict[str, Any]
    inputs: dict[str, str]
    training_key: str = "k" * 64
    _tasks: list[TaskProcess] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(str(self.root))

    def start(self, task: Literal["launch", "train", "release"]) -> TaskProcess:
        """Start a task as a process of its own."""
        call = {
            "task": task,
            "root": str(self.root),
            "run_id": self.run_id,
            "training_key": self.training_key,
            "spec": self.spec,
            "engine": self.engine,
            "inputs": self.inputs,
        }
        output = self.root / f"{len(self._tasks)}-{task}.out"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, EVENTS_VARIABLE: str(self.root / "events.jsonl")}
        with open(output, "wb") as handle:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.local.task_process", json.dumps(call)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=handle,
            )
        self._tasks.append(TaskProcess(process, output))
        return self._tasks[-1]

    def run(self, task: Literal["launch", "train", "release"], *, seconds: float = 60) -> Any:
        """Start a task and wait for its result."""
        return self.start(task).result(seconds)

    def head(self) -> Head:
        head = read_head(Path(self.store.raycluster(self.run_id)))
        assert head is not None, "no head is recorded"
        return head

    def processes(self, role: Role, *, attempt: int = 0, match: str = "") -> list[psutil.Process]:
        """The run's processes of a role: the head, the driver of an attempt's job, or its Ray workers whose title has `match`."""
        if role == "head":
            return [psutil.Process(self.head().pid)]
        found = []
        for process in job_processes(f"{self.run_id}-a{attempt}"):
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                worker = command[0].startswith("ray::")
                if role == "worker" and worker and "JobSupervisor" not in command[0] and "IDLE" not in command[0] and match in command[0]:
                    found.append(process)
                # Ray starts the driver as the leader of a session, and beside it a shell that ends it with its supervisor.
                if role == "driver" and not worker and os.getsid(process.pid) == process.pid and not command[0].endswith("sh"):
                    found.append(process)
        return found

    def kill(self, role: Role, *, attempt: int = 0, match: str = "") -> None:
        """SIGKILL one process of a role, and wait until it is gone."""
        process = self.processes(role, attempt=attempt, match=match)[0]
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, f"the {role}'s end")

    def step(self, attempt: int) -> int:
        """The last step in an attempt's metrics, 0 where there are none."""
        path = Path(self.store.attempt(self.training_key, f"{self.run_id}-a{attempt}"), "metrics.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def attempts(self) -> list[str]:
        """Job names of the run's attempts, as their folders tell."""
        return sorted(path.name for path in Path(self.store.checkpoints(self.training_key)).glob(f"{self.run_id}-a*"))

    def jobs(self) -> list[str]:
        """Job names that the head knows."""
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(self.head().dashboard_url, headers={"Authorization": f"Bearer {self.head().token()}"})
        return sorted(job.submission_id for job in client.list_jobs() if job.submission_id)

    def listeners(self) -> dict[str, str]:
        """Every address on which a process of the run listens, by `pid command`."""
        found = {}
        for process in run_processes(self.run_id):
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        found[f"{process.pid} {' '.join(process.cmdline())[:60].strip()} :{connection.laddr.port}"] = connection.laddr.ip
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind that the tasks told."""
        path = self.root / "events.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in events if event["kind"] == kind]

    def end(self) -> None:
        """End whatever is left of the run, its tasks included."""
        for task in self._tasks:
            if task.process.poll() is None:
                task.kill()
        stop_head(self.run_id, Path(self.store.raycluster(self.run_id)), Deadline.after(SYSTEM, 30))


@contextlib.contextmanager
def harness(root: Path, run_id: str, **arguments: Any) -> Iterator[Harness]:
    """A harness whose run is ended whatever happens in the block."""
    made = Harness(root, run_id, **arguments)
    try:
        yield made
    finally:
        made.end()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 45) -> None:
    """Poll until the condition holds; fails naming `what`."""
    deadline = Deadline.after(SYSTEM, seconds)
    while not condition():
        assert not deadline.passed, f"waited {seconds:g} s for {what}"
        SYSTEM.sleep(0.05)


def is_loopback(address: str) -> bool:
    """Whether an address lies in 127.0.0.0/8, also as ::ffff:127.0.0.1, or is ::1."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
