"""Following a job to its end: the runner's status is truth, the log is a view, a limit stops what does not move."""

from __future__ import annotations

from collections.abc import Callable

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import JobDeadline, JobError, JobStalled
from tuneline.core.log import get_logger
from tuneline.rayjobs.base import JobRunner, JobState, JobStatus

_log = get_logger("rayjobs.watch")
_ENDED = (JobState.UNKNOWN, JobState.HEAD_LOST)


def watch(
    runner: JobRunner,
    name: str,
    *,
    progress: Callable[[], int],
    stall_seconds: float,
    deadline: Deadline,
    on_log: Callable[[str], None],
    log_offset: int = 0,
    guard: Callable[[], JobError | None] = lambda: None,
    clock: Clock = SYSTEM,
    poll_seconds: float = 1.0,
) -> JobStatus:
    """Follow a job until it ends or its head is lost, and return that status.

    Args:
        progress: The last training step known; called once a poll.
        stall_seconds: Longest time without a new step, waiting for a place in the cluster included.
        on_log: Takes the log text as it comes, from `log_offset` (characters) on, each character once.
        guard: Why the job must not go on, None while it may; asked after each `progress`.

    Raises:
        JobStalled: No new step for `stall_seconds`; the job is stopped.
        JobDeadline: The deadline passed; the job is stopped.
        JobError: What `guard` returned; the job is stopped.
    """
    log = _Log(runner, name, on_log, log_offset)
    step, moved = progress(), clock.monotonic()
    while True:
        # Before the log, so that the log of a job that has ended is read whole.
        status = runner.status(name)
        log.pump()
        latest = progress()
        if status.state.terminal or status.state in _ENDED:
            return status
        if latest != step:
            step, moved = latest, clock.monotonic()
        if limit := guard() or _limit(name, status, step, clock.monotonic() - moved, stall_seconds, deadline):
            runner.stop(name)
            log.pump()
            if (status := runner.status(name)).state is JobState.SUCCEEDED:
                return status
            raise limit
        clock.sleep(poll_seconds)


def _limit(name: str, status: JobStatus, step: int, still: float, stall_seconds: float, deadline: Deadline) -> JobError | None:
    if deadline.passed:
        return JobDeadline(
            f"job {name} was stopped at the training deadline, at step {step}",
            found=f"state {status.state}, step {step}",
            next_move="run again with a larger train_deadline_hours: training resumes from the newest complete checkpoint",
        )
    if still >= stall_seconds:
        return JobStalled(
            f"job {name} was stopped: no new step for {still / 60:.3g} minutes, last step {step}",
            asked=f"a new step at least every {stall_seconds / 60:g} minutes",
            found=f"state {status.state}, step {step}",
            next_move="read the job's log; raise train_stall_minutes if a step or the start takes longer",
        )
    return None


class _Log:
    """The log of a job, pumped into `on_log`; losing it is told once and harms nothing."""

    def __init__(self, runner: JobRunner, name: str, on_log: Callable[[str], None], offset: int) -> None:
        self._runner, self._name, self._on_log, self._offset = runner, name, on_log, offset
        self._told = False

    def pump(self) -> None:
        try:
            while True:
                text, offset = self._runner.logs(self._name, self._offset)
                if not text:
                    return
                self._on_log(text)
                self._offset = offset
        except Exception as error:
            if not self._told:
                _log.warning("the log of job %s is not readable for now (%s); the job goes on", self._name, error)
                self._told = True
