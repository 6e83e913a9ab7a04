"""A run on this computer as the operating system sees it: its processes, its temporary folder, its end.

Every process of a run inherits TUNELINE_SESSION, so that all of them can be found and ended, whoever started them.
kfp.local does not run the exit task on Ctrl-C; whoever ends a session runs the cleanup itself.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import ClusterError, SpecError
from tuneline.core.log import EVENTS_VARIABLE

SESSION_VARIABLE = "TUNELINE_SESSION"


@dataclass(frozen=True)
class Session:
    """One `tuneline run`.

    Attributes:
        folder: `{root}/sessions/<id>`: pid of `tuneline run`, events.jsonl, run.log, run_id, kfp's own outputs.
        temporary: A short path for TMPDIR: sockets below it must stay under 108 characters.
    """

    id: str
    folder: Path
    temporary: Path

    @classmethod
    def create(cls, root: Path) -> Session:
        """A new session in the store at `root`.

        Raises:
            SpecError: If nothing can be written there, or to the folder for temporary files.
        """
        identity = time.strftime("%Y%m%d-%H%M%S-", time.gmtime(SYSTEM.now())) + secrets.token_hex(4)
        folder = root / "sessions" / identity
        try:
            folder.mkdir(parents=True)
            (folder / "pid").write_text(str(os.getpid()))
            base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 20 else "/tmp"
            return cls(identity, folder, Path(tempfile.mkdtemp(prefix="tl-s-", dir=base)))
        except OSError as error:
            raise SpecError(
                [f"output_root={str(root)!r}: {error.strerror}: {error.filename}; choose another folder with --store"]
            ) from error

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "run.log"

    @property
    def run_id(self) -> str:
        """The run's id, '' until its first task has told it."""
        path = self.folder / "run_id"
        return path.read_text().strip() if path.exists() else ""

    def environment(self) -> dict[str, str]:
        """What every process of the session inherits."""
        return {
            **os.environ,
            SESSION_VARIABLE: self.id,
            EVENTS_VARIABLE: str(self.events),
            "TMPDIR": str(self.temporary),
            "PYTHONUNBUFFERED": "1",
            # kfp.local decodes what tasks print by its own locale, and a task may print any character.
            "PYTHONUTF8": "1",
            "PYTHONIOENCODING": "utf-8:backslashreplace",
        }

    def processes(self) -> list[psutil.Process]:
        """Every live process of the session but this one."""
        return [process for process in psutil.process_iter() if process.pid != os.getpid() and self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(SESSION_VARIABLE) == self.id
        except (psutil.Error, OSError):
            return False

    def sweep(self, clock: Clock = SYSTEM, seconds: float = 30.0) -> int:
        """End what is left of the session and prove it gone. Returns how many processes were ended.

        Raises:
            ClusterError: If any is alive when the time is over.
        """
        deadline = Deadline.after(clock, seconds)
        ended: set[int] = set()
        while left := self.processes():
            if deadline.passed:
                raise ClusterError(
                    f"{len(left)} process(es) of the run did not end within {seconds:.0f} s",
                    found=", ".join(f"{process.pid}" for process in left),
                    next_move="end them by pid",
                )
            ended.update(process.pid for process in left)
            kill(left)
            clock.sleep(0.1)
        shutil.rmtree(self.temporary, ignore_errors=True)
        return len(ended)


def kill(processes: Iterable[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes that may be gone already."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def interrupt(session: Session, root: str, runner_pid: int | None) -> None:
    """End a session before its pipeline has: the runner and its tasks first, so that nothing new starts; then the cleanup; then the rest.

    Args:
        runner_pid: The process that runs kfp.local, None where that is this process.
    """
    from tuneline.tasks.cleanup import end_run

    runner = psutil.Process(runner_pid) if runner_pid and psutil.pid_exists(runner_pid) else None
    below = (runner or psutil.Process()).children(recursive=True)
    kill([*([runner] if runner else []), *below])
    try:
        if session.run_id:
            end_run(session.run_id, root, "CANCELLED")
    finally:
        session.sweep()
