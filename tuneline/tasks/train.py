"""train: from a Ray cluster to the complete checkpoint of the last step, over as many attempts as it is given.

A task that is killed does not stop its job: its retry finds the job by name and goes on watching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import ClusterError, JobDeadline, JobError, JobGuarded, JobStalled
from tuneline.core.files import read_json
from tuneline.core.log import get_logger
from tuneline.engines import guards
from tuneline.engines.base import Checkpoint, Engine, TrainingInputs
from tuneline.engines.registry import get_engine
from tuneline.rayjobs.attempts import Attempts
from tuneline.rayjobs.base import JobRunner, JobState, JobStatus, RayCluster
from tuneline.rayjobs.local import LocalCluster
from tuneline.rayjobs.lock import WriterLock
from tuneline.rayjobs.progress import Progress
from tuneline.rayjobs.watch import watch
from tuneline.tasks import training
from tuneline.tasks.context import Artifact, running_spec

METRICS_FILE = "metrics.jsonl"
_TAIL_LINES = 20
_LOST = (JobState.HEAD_LOST, JobState.UNKNOWN)

_log = get_logger("train")


class Trained(NamedTuple):
    """The checkpoint of the last step."""

    step: int
    checkpoint_uri: str


def run(
    spec_json: str, job_name: str, training_key: str, model: Artifact, dataset: Artifact, code: Artifact, checkpoint: Artifact
) -> Trained:
    """Train to the last step, or find that it is done; emit the last step's checkpoint under the run that wrote it."""
    with running_spec("train", spec_json, job_name, training_key=training_key) as (task, spec):
        staged = training.take_staged(task, model, dataset, code)
        inputs = TrainingInputs("", staged.base.uri, staged.dataset.uri, staged.code.uri, "")
        done = train(spec, task.store, task.run_id, training_key, get_engine(spec.train_engine), inputs)
        description = read_json(Path(task.store.checkpoints(training_key)) / "training.json")
        # The attempt's folder is `<run_id>-a<N>`: an earlier run's checkpoint stays an earlier run's.
        producer, _, number = Path(done.path).parent.name.rpartition("-a")
        task.emit(
            "checkpoint",
            checkpoint,
            done.path,
            kind="checkpoint",
            digest="",
            run_id=producer,
            attempt=number,
            parameters=description["parameters"],
            base=staged.base.metadata.get("lineage_base", ""),
            base_sha256=staged.base.digest,
            dataset_sha256=staged.dataset.digest,
            code=staged.code.digest,
            compute=description["hardware"],
            step=str(done.step),
        )
        task.notes.update(checkpoint=done.path, step=str(done.step), run=producer)
        return Trained(done.step, done.path)


def train(
    spec: RunSpec,
    store: Store,
    run_id: str,
    training_key: str,
    engine: Engine,
    inputs: TrainingInputs,
    *,
    clock: Clock = SYSTEM,
    cluster: RayCluster | None = None,
    lock: WriterLock | None = None,
) -> Checkpoint:
    """Train, or find that it is done.

    Args:
        inputs: The folders to read; job_name, attempt_dir and resume_from are filled in here for each attempt.

    Returns:
        The complete checkpoint of the last step.

    Raises:
        JobError: All attempts failed (JobStalled where the last one stalled), or the job ended well short of the last step.
        JobGuarded: A guard stopped the job; its newest checkpoint is kept.
        JobDeadline: train_deadline_hours passed, over all attempts and retries of this task.
        ClusterError: No Ray head came up.
    """
    attempts = Attempts(spec, store, run_id, training_key, engine, clock=clock)
    if done := attempts.final():
        _log.info("training %s is complete: %s", training_key[:12], done.path)
        return done
    cluster = cluster or LocalCluster.of(spec, store, run_id, clock=clock)
    lock = lock or WriterLock(Path(store.writer(training_key)), run_id, clock=clock)
    lock.acquire(attempts.deadline)
    try:
        done = _Training(spec, engine, inputs, attempts, cluster, clock).run()
    except JobError:
        lock.release()
        raise
    # On anything else the job may still run: the lock then lapses with the run's processes.
    lock.release()
    return done


@dataclass
class _Training:
    spec: RunSpec
    engine: Engine
    inputs: TrainingInputs
    attempts: Attempts
    cluster: RayCluster
    clock: Clock

    def run(self) -> Checkpoint:
        # Another run may have finished it while this one waited for the lock.
        if done := self.attempts.final():
            return done
        runner, number = self.cluster.attach(), self.attempts.latest()
        status = self._follow(runner, number) if number else JobStatus(JobState.UNKNOWN, "not started")
        # A task killed between making the attempt's folder and submitting its job: the number is still good.
        again = number > 0 and status.state in _LOST and self.attempts.untouched(number)
        while True:
            if done := self.attempts.final():
                if status.state not in (JobState.SUCCEEDED, JobState.UNKNOWN):
                    _log.warning("job %s saved the last step whole, then ended as %s", self.attempts.name(number), status.state)
                return done
            if status.state is JobState.SUCCEEDED:
                raise self._short(number)
            if number and not again:
                _log.warning("attempt %d: %s", number, _reason(status))
            if self.attempts.used() >= self.spec.train_attempts and not again:
                raise self._failed(number, status)
            if self.attempts.deadline.passed:
                raise JobDeadline(
                    f"the training deadline of {self.spec.train_deadline_hours:g} hours passed before attempt {self.attempts.next()}",
                    next_move="run again with a larger train_deadline_hours: training resumes from the newest complete checkpoint",
                )
            runner = self._next_runner(runner, number, status)
            number = number if again else self.attempts.next()
            status, again = self._attempt(runner, number), False

    def _next_runner(self, runner: JobRunner | None, number: int, status: JobStatus) -> JobRunner:
        if status.state is JobState.HEAD_LOST or runner is None:
            return self.cluster.renew()
        if number:
            # Nothing of the old attempt may still write when the next one looks for a checkpoint.
            runner.stop(self.attempts.name(number))
        return self.cluster.ensure()

    def _attempt(self, runner: JobRunner, number: int) -> JobStatus:
        newest = self.attempts.newest()
        inputs = replace(
            self.inputs,
            job_name=self.attempts.name(number),
            attempt_dir=str(self.attempts.directory(number)),
            resume_from=newest.path if newest else "",
        )
        _log.info("attempt %d (job %s) starts %s", number, inputs.job_name, f"from {newest.path}" if newest else "at step 0")
        try:
            runner.submit(inputs.job_name, self.engine.build_job(self.spec, inputs))
        except ClusterError as error:
            return JobStatus(JobState.HEAD_LOST, f"{error.message}: {error.found}")
        return self._follow(runner, number)

    def _follow(self, runner: JobRunner | None, number: int) -> JobStatus:
        """Watch an attempt to its end; a stall is an attempt that failed."""
        if reason := self.attempts.stall(number):
            return _Stalled(JobState.STOPPED, reason)
        if runner is None:
            return JobStatus(JobState.HEAD_LOST, "the Ray head is gone")
        log, directory = self.attempts.log(number), self.attempts.directory(number)
        newest, in_log = self.attempts.newest(), self.engine.metrics_in_log
        progress = Progress(
            self.engine,
            log.path if in_log else directory / METRICS_FILE,
            total=self.engine.expected_final_step(self.spec),
            step=newest.step if newest else 0,
            series=directory / METRICS_FILE if in_log else None,
            clock=self.clock,
        )
        limits = guards.Limits.of(self.spec)
        _log.info("watching job %s; its log: %s", self.attempts.name(number), log.path)
        try:
            return watch(
                runner,
                self.attempts.name(number),
                progress=progress,
                stall_seconds=self.spec.train_stall_minutes * 60,
                deadline=self.attempts.deadline,
                on_log=log.append,
                log_offset=log.offset,
                guard=lambda: self._guard(number, guards.check(list(progress.rows.values()), limits)),
                clock=self.clock,
            )
        except JobStalled as stall:
            self.attempts.note_stall(number, stall.message)
            return _Stalled(JobState.STOPPED, stall.message)

    def _guard(self, number: int, trip: guards.Trip | None) -> JobGuarded | None:
        """The error of a guard that tripped: another attempt would only do the same again."""
        if trip is None:
            return None
        newest = self.attempts.newest()
        return JobGuarded(
            f"job {self.attempts.name(number)} was stopped ({trip.reason}): {trip.message}",
            found=f"{trip.found}; newest complete checkpoint: {f'step {newest.step}' if newest else 'none'}",
            next_move=trip.next_move,
        )

    def _short(self, number: int) -> JobError:
        newest = self.attempts.newest()
        expected = self.engine.expected_final_step(self.spec)
        return JobError(
            f"job {self.attempts.name(number)} ended without an error but short of the last step",
            asked=f"a complete checkpoint of step {expected}",
            found=f"newest complete checkpoint: {f'step {newest.step}' if newest else 'none'}\n{self._tail(number)}",
            next_move="check the data set's size against train_steps, and the job's log",
        )

    def _failed(self, number: int, status: JobStatus) -> JobError:
        kind = JobStalled if isinstance(status, _Stalled) else JobError
        newest = self.attempts.newest()
        return kind(
            f"training failed in {self.attempts.used()} of {self.spec.train_attempts} attempts; the last one: {_reason(status)}",
            asked=f"step {self.engine.expected_final_step(self.spec)}",
            found=f"newest complete checkpoint: {f'step {newest.step}' if newest else 'none'}\n{self._tail(number)}",
            next_move="correct the cause and run again: training resumes from the newest complete checkpoint",
        )

    def _tail(self, number: int) -> str:
        log = self.attempts.log(number)
        return "\n".join([f"  last lines of {log.path}:", *(f"    {line}" for line in log.tail(_TAIL_LINES))])


class _Stalled(JobStatus):
    """A job that was stopped because it stalled."""


def _reason(status: JobStatus) -> str:
    # Ray appends the whole log to the message.
    line = next(iter(status.message.splitlines()), "").removesuffix(", last available logs (truncated to 20,000 chars):")
    return f"{status.state}: {line}" if line else str(status.state)
