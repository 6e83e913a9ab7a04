"""One run at a time writes the checkpoints of a training key."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import JobDeadline
from tuneline.core.files import read_json, write_json
from tuneline.core.log import get_logger
from tuneline.rayjobs.processes import lives, run_processes, start_time

_log = get_logger("rayjobs.lock")
_SAY_AGAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Writer:
    """Who holds the lock: a run, and the process of it that took it."""

    run_id: str
    host: str
    pid: int
    started: float


def is_alive(writer: Writer) -> bool:
    """Whether the writer's process or anything of its run lives; a writer on another computer counts as alive."""
    if writer.host != platform.node():
        return True
    return (writer.pid != os.getpid() and lives(writer.pid, writer.started)) or bool(run_processes(writer.run_id))


class WriterLock:
    """The lock file of one training key.

    A killed holder leaves the file; it lapses with the last process of its run. A run takes over its own lock at once:
    that is its retry.
    """

    def __init__(self, path: Path, run_id: str, *, alive: Callable[[Writer], bool] = is_alive, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._run_id = run_id
        self._alive = alive
        self._clock = clock

    def holder(self) -> Writer | None:
        """Who holds it now."""
        try:
            return Writer(**read_json(self._path))
        except FileNotFoundError:
            return None

    def acquire(self, deadline: Deadline, *, poll_seconds: float = 2.0) -> None:
        """Take the lock, waiting while another living run holds it.

        Raises:
            JobDeadline: If it is still held at the deadline.
        """
        said = -_SAY_AGAIN_SECONDS
        while (holder := self._try()) is not None:
            if deadline.passed:
                raise JobDeadline(
                    f"run {holder.run_id} still trains the same",
                    found=f"{self._path}: held by process {holder.pid} on {holder.host}",
                    next_move=f"wait for it or cancel it; if it is surely gone, delete {self._path}",
                )
            if self._clock.monotonic() - said >= _SAY_AGAIN_SECONDS:
                said = self._clock.monotonic()
                _log.info("run %s (process %d on %s) trains the same; waiting for it", holder.run_id, holder.pid, holder.host)
            self._clock.sleep(poll_seconds)

    def release(self) -> None:
        """Give the lock back if this run holds it."""
        with self._exclusive():
            holder = self.holder()
            if holder is not None and holder.run_id == self._run_id:
                self._path.unlink()

    def _try(self) -> Writer | None:
        """Take the lock, or say who holds it."""
        with self._exclusive():
            holder = self.holder()
            if holder is not None and holder.run_id != self._run_id and self._alive(holder):
                return holder
            if holder is not None and holder.run_id != self._run_id:
                _log.info("taking over the training from run %s, of which nothing runs any more", holder.run_id)
            write_json(self._path, asdict(Writer(self._run_id, platform.node(), os.getpid(), start_time(os.getpid()))))
            return None

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Reading and replacing the file as one act; the kernel gives this up when a process dies."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield
