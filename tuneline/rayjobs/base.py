"""The job runner port: submit is idempotent by name, status is truth, logs are a view, stop verifies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tuneline.core.clock import Deadline
from tuneline.engines.base import JobRequest


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    #: The head answers but does not know the job: it was restarted, or the job was never submitted.
    UNKNOWN = "UNKNOWN"
    #: The head does not answer: its processes are gone.
    HEAD_LOST = "HEAD_LOST"

    @property
    def terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True)
class JobStatus:
    """A job's state and the runner's own message about it."""

    state: JobState
    message: str = ""


class JobRunner(Protocol):
    """Runs jobs on one Ray cluster."""

    def submit(self, name: str, request: JobRequest) -> bool:
        """Start the job unless one of this name exists. True if this call started it, False if it was adopted."""

    def status(self, name: str) -> JobStatus:
        """The job's state; never raises for a lost head."""

    def logs(self, name: str, offset: int) -> tuple[str, int]:
        """Log text from character `offset` on, and the next offset."""

    def stop(self, name: str) -> None:
        """Stop the job and return only when its state is terminal or its head gone."""


class RayCluster(Protocol):
    """The one Ray cluster of a run."""

    @property
    def record(self) -> str:
        """Path of the file that tells every later task, and every retry, where the cluster is."""

    def attach(self) -> JobRunner | None:
        """A runner on the recorded cluster, whether it still answers or not; None where none is recorded."""

    def ensure(self) -> JobRunner:
        """A runner on the recorded cluster if it lives, else on a new one.

        Raises:
            ClusterError: If no cluster comes up in time.
        """

    def renew(self) -> JobRunner:
        """A runner on a new cluster, after everything of the old one is gone.

        Raises:
            ClusterError: If the old one does not go or the new one does not come up.
        """

    def remove(self, deadline: Deadline) -> None:
        """End the cluster and every process of the run, and return only when they are gone.

        Raises:
            ClusterError: If something is left at the deadline.
        """
