"""The processes of a run and of a job, found by a marker in their environment and ended one by one, by pid.

Ray's drivers and agents leave the head's process group and outlive it, so neither the group nor the process tree finds them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import ClusterError

#: Every process of a run inherits it: the head, Ray's daemons, drivers and workers.
RUN_MARKER = "TUNELINE_RUN_ID"
#: The driver and the workers of one job have it too.
JOB_MARKER = "TUNELINE_JOB"

#: psutil computes a start time from the boot time, which a clock correction moves.
_START_TOLERANCE = 2.0


def run_processes(run_id: str) -> list[psutil.Process]:
    """The living processes of a run, less the caller and its ancestors."""
    return _marked(RUN_MARKER, run_id)


def job_processes(name: str) -> list[psutil.Process]:
    """The living processes of one job, less the caller and its ancestors."""
    return _marked(JOB_MARKER, name)


def _marked(variable: str, value: str) -> list[psutil.Process]:
    me = psutil.Process()
    mine = {me.pid, *(parent.pid for parent in me.parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in mine:
            continue
        # Other users' processes are refused; those that end meanwhile raise; a zombie's environment is empty.
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def start_time(pid: int) -> float:
    """When the process started, in seconds since the epoch; with the pid it names a process for good.

    Raises:
        psutil.NoSuchProcess: If there is none.
    """
    return float(psutil.Process(pid).create_time())


def lives(pid: int, started: float) -> bool:
    """Whether the process that had this pid at that start time still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) <= _START_TOLERANCE and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end_processes(
    find: Callable[[], list[psutil.Process]], what: str, deadline: Deadline, *, grace: float = 3.0, clock: Clock = SYSTEM
) -> None:
    """SIGTERM, after `grace` seconds SIGKILL, to what `find` returns, until it returns nothing.

    Raises:
        ClusterError: If a process is left at the deadline; names pids and commands.
    """
    asked: set[int] = set()
    patience = Deadline.after(clock, grace)
    while processes := find():
        if deadline.passed:
            raise ClusterError(
                f"processes of {what} do not end",
                found="; ".join(f"pid {process.pid}: {_command(process)}" for process in processes),
                next_move="end them by pid (kill -9)",
            )
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if patience.passed:
                    process.kill()
                elif process.pid not in asked:
                    process.terminate()
                    asked.add(process.pid)
        clock.sleep(0.1)


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:100].strip()
    return "?"
