from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.fakes.rayjobs import FakeClock
from tuneline.core.clock import SYSTEM, Deadline
from tuneline.core.errors import ClusterError
from tuneline.rayjobs.processes import JOB_MARKER, RUN_MARKER, end_processes, job_processes, lives, run_processes, start_time

RUN = f"tlunit{os.getpid()}"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, RUN_MARKER: RUN, JOB_MARKER: f"{RUN}-a1"}
    process = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_processes_are_found_by_their_marker(child: subprocess.Popen[bytes]) -> None:
    assert [process.pid for process in run_processes(RUN)] == [child.pid]
    assert [process.pid for process in job_processes(f"{RUN}-a1")] == [child.pid]
    assert run_processes("tlother") == []


def test_a_process_is_named_by_pid_and_start_time_and_a_zombie_is_gone(child: subprocess.Popen[bytes]) -> None:
    started = start_time(child.pid)
    assert lives(child.pid, started)
    assert not lives(child.pid, started - 60)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not lives(child.pid, started)
    assert run_processes(RUN) == []


def test_processes_are_ended(child: subprocess.Popen[bytes]) -> None:
    end_processes(lambda: run_processes(RUN), "a test", Deadline.after(SYSTEM, 20))
    assert child.wait() == -signal.SIGTERM


class Stubborn:
    """A process that ends `ends_after` seconds after SIGKILL."""

    pid = 4711

    def __init__(self, clock: FakeClock, ends_after: float) -> None:
        self.clock, self.ends_after, self.gone = clock, ends_after, False
        self.signals: list[tuple[str, float]] = []

    def terminate(self) -> None:
        self.signals.append(("TERM", self.clock.time))

    def kill(self) -> None:
        if "KILL" not in [name for name, _ in self.signals]:
            self.clock.after(self.ends_after, lambda: setattr(self, "gone", True))
            self.signals.append(("KILL", self.clock.time))

    def cmdline(self) -> list[str]:
        return ["ray::IDLE"]


def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    clock = FakeClock()
    process = Stubborn(clock, ends_after=1)
    end_processes(lambda: [] if process.gone else [process], "run x", Deadline.after(clock, 30), grace=3, clock=clock)  # type: ignore[list-item]
    assert [name for name, _ in process.signals] == ["TERM", "KILL"]
    assert process.signals[1][1] - process.signals[0][1] == pytest.approx(3, abs=0.2)


def test_what_does_not_end_is_an_error_that_names_it() -> None:
    clock = FakeClock()
    process = Stubborn(clock, ends_after=1000)
    with pytest.raises(ClusterError) as raised:
        end_processes(lambda: [process], "run x", Deadline.after(clock, 30), clock=clock)  # type: ignore[list-item]
    assert "pid 4711: ray::IDLE" in raised.value.found
