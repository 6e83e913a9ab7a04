"""Jobs on a Ray head of this computer, and that head as the cluster of a run."""

from __future__ import annotations

import codecs
import os
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import ClusterError
from tuneline.core.log import get_logger
from tuneline.engines.base import JobRequest
from tuneline.rayjobs.base import JobState, JobStatus
from tuneline.rayjobs.head import LOOPBACK, Head, adopt_head, read_head, start_head, stop_head
from tuneline.rayjobs.processes import JOB_MARKER, end_processes, job_processes

_REQUEST_SECONDS = 60.0
#: How long a head whose process lives may fail to answer; a busy laptop stalls Ray's dashboard for seconds.
_PATIENCE_SECONDS = 60.0
_STOP_SECONDS = 60.0
_LOG_CHUNK_BYTES = 4 * 1024 * 1024

_log = get_logger("rayjobs.local")


class LocalJobRunner:
    """JobRunner over Ray's job service on one head."""

    def __init__(self, head: Head, *, clock: Clock = SYSTEM) -> None:
        self._head = head
        self._clock = clock
        self._readers: dict[str, _LogReader] = {}

    @cached_property
    def _client(self) -> Any:
        """The client; raises ConnectionError while the head is down."""
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient

        class Client(JobSubmissionClient):
            def _do_request(self, *arguments: Any, **options: Any) -> Any:
                # Ray's client sets no timeout: a frozen head would freeze the watch, and with it the stall limit.
                try:
                    return super()._do_request(*arguments, **{"timeout": _REQUEST_SECONDS, **options})
                except AuthenticationError as error:
                    raise ConnectionError("another Ray head answers on this port") from error

        bypass = [*filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy")]), LOOPBACK]
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(dict.fromkeys(",".join(bypass).split(",")))
        # Ray lets either win over the address that it is given: the job would go to somebody else's cluster.
        for variable in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
            os.environ.pop(variable, None)
        # The header and not RAY_AUTH_TOKEN_PATH: Ray reads the variable once, and one process could never use a second head.
        return Client(self._head.dashboard_url, headers={"Authorization": f"Bearer {self._head.token()}"})

    def submit(self, name: str, request: JobRequest) -> bool:
        """Start the job unless one of this name exists. True if this call started it, False if it was adopted.

        Raises:
            ClusterError: If the head does not take it.
        """
        before = self.status(name)
        if before.state is JobState.HEAD_LOST:
            raise ClusterError(f"job {name} has no Ray head", found=before.message, next_move="start the run again")
        if before.state is not JobState.UNKNOWN:
            return False
        try:
            self._client.submit_job(
                submission_id=name,
                # exec: without it a shell stays between Ray and the driver.
                entrypoint=f"exec {shlex.join(request.argv)}",
                runtime_env={"env_vars": {**request.env, JOB_MARKER: name}},
                metadata=dict(request.metadata),
            )
        except (OSError, RuntimeError) as error:
            if "already exists" in str(error):
                return False
            # An answer that was lost: the job may run.
            if self.status(name).state not in (JobState.UNKNOWN, JobState.HEAD_LOST):
                return True
            raise ClusterError(
                f"the Ray head does not take job {name}", found=_last_line(error), next_move="read the head's log in the run's logs folder"
            ) from error
        return True

    def status(self, name: str) -> JobStatus:
        """The job's state; never raises for a lost head."""
        patience = Deadline.after(self._clock, _PATIENCE_SECONDS)
        while True:
            try:
                info = self._client.get_job_info(name)
                return JobStatus(JobState(info.status.value), info.message or "")
            # requests' errors are OSErrors; Ray's own are RuntimeErrors with the HTTP status in the text.
            except (OSError, RuntimeError) as error:
                if "status code 404" in str(error):
                    return JobStatus(JobState.UNKNOWN, f"the Ray head does not know job {name}")
                if not self._head.alive:
                    return JobStatus(JobState.HEAD_LOST, f"the Ray head (pid {self._head.pid}) is gone")
                if patience.passed:
                    return JobStatus(
                        JobState.HEAD_LOST,
                        f"the Ray head (pid {self._head.pid}) did not answer for {_PATIENCE_SECONDS:g} s: {_last_line(error)}",
                    )
            self._clock.sleep(1.0)

    def logs(self, name: str, offset: int) -> tuple[str, int]:
        """Log text from character `offset` on, and the next offset; read from Ray's file, which outlives the head's processes."""
        path = Path(self._head.temp_dir, "session_latest", "logs", f"job-driver-{name}.log")
        reader = self._readers.get(name)
        if reader is None or reader.offset != offset:
            reader = self._readers[name] = _LogReader(path)
            reader.skip(offset)
        return reader.read(), reader.offset

    def stop(self, name: str) -> None:
        """Stop the job and return only when its state is terminal or its head gone, and its processes are gone.

        Raises:
            ClusterError: If it does not stop within a minute.
        """
        deadline = Deadline.after(self._clock, _STOP_SECONDS)
        asked = False
        while (state := self.status(name).state) in (JobState.PENDING, JobState.RUNNING):
            if deadline.passed:
                raise ClusterError(f"job {name} does not stop", found=f"state {state}", next_move="end the run: `tuneline cancel`")
            if not asked:
                try:
                    self._client.stop_job(name)
                    asked = True
                except (OSError, RuntimeError) as error:
                    _log.warning("stopping job %s: %s", name, _last_line(error))
            self._clock.sleep(0.2)
        end_processes(lambda: job_processes(name), f"job {name}", deadline, clock=self._clock)


class _LogReader:
    """A growing UTF-8 file, read by character offset without reading anything twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self.offset = 0

    def read(self) -> str:
        try:
            with open(self._path, "rb") as handle:
                handle.seek(self._position)
                data = handle.read(_LOG_CHUNK_BYTES)
        except FileNotFoundError:
            return ""
        self._position += len(data)
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        self.offset += len(text)
        return text

    def skip(self, offset: int) -> None:
        """Move to character `offset`, or to the end of a shorter file."""
        while self.offset < offset and (text := self.read()):
            if self.offset > offset:
                self._pending = text[offset - self.offset :]
                self.offset = offset


class LocalCluster:
    """A head on this computer as the cluster of a run."""

    def __init__(self, store: Store, run_id: str, *, cpus: int = 1, ready_seconds: float = 60.0, clock: Clock = SYSTEM) -> None:
        self._run_id = run_id
        self._record = Path(store.raycluster(run_id))
        self._head_log = Path(store.run_logs(run_id), "raycluster.log")
        self._cpus = cpus
        self._ready_seconds = ready_seconds
        self._clock = clock

    @classmethod
    def of(cls, spec: RunSpec, store: Store, run_id: str, *, clock: Clock = SYSTEM) -> LocalCluster:
        """One CPU for each training process and one for what drives them."""
        return cls(store, run_id, cpus=spec.gpu_workers + 1, ready_seconds=spec.gpu_ready_minutes * 60, clock=clock)

    @property
    def record(self) -> str:
        return str(self._record)

    def attach(self) -> LocalJobRunner | None:
        head = read_head(self._record)
        return None if head is None else LocalJobRunner(head, clock=self._clock)

    def ensure(self) -> LocalJobRunner:
        head = adopt_head(self._record, ready_seconds=self._ready_seconds, clock=self._clock)
        if head is None:
            return self.renew()
        _log.info("adopting the Ray head of run %s at %s (pid %d)", self._run_id, head.dashboard_url, head.pid)
        return LocalJobRunner(head, clock=self._clock)

    def renew(self) -> LocalJobRunner:
        self.remove(Deadline.after(self._clock, _STOP_SECONDS))
        head = start_head(
            self._run_id,
            self._cpus,
            record=self._record,
            log=self._head_log,
            ready_seconds=self._ready_seconds,
            clock=self._clock,
        )
        return LocalJobRunner(head, clock=self._clock)

    def remove(self, deadline: Deadline) -> None:
        stop_head(self._run_id, self._record, deadline, clock=self._clock)


def _last_line(error: BaseException) -> str:
    """What Ray's error says; before it stands the server's traceback."""
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)
