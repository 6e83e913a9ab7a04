"""A session ends every process that carries its mark, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuneline.cli.session import Session
from tuneline.core.errors import ClusterError

SLEEP = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def start(session: Session | None) -> subprocess.Popen[str]:
    environment = session.environment() if session else None
    process = subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_sweep_ends_ours_and_leaves_others(tmp_path: Path) -> None:
    one, two = Session.create(tmp_path), Session.create(tmp_path)
    ours, other, unmarked = start(one), start(two), start(None)
    try:
        assert [process.pid for process in one.processes()] == [ours.pid]
        assert one.sweep() == 1
        assert one.processes() == []
        assert psutil.pid_exists(other.pid)
        assert other.poll() is None
        assert unmarked.poll() is None
        assert not one.temporary.exists()
    finally:
        for process in (ours, other, unmarked):
            process.kill()
            process.wait()
        two.sweep()


def test_sweep_says_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.create(tmp_path)
    process = start(session)
    try:
        monkeypatch.setattr("tuneline.cli.session.kill", lambda processes: None)
        with pytest.raises(ClusterError, match="did not end within 0 s") as caught:
            session.sweep(seconds=0)
        assert str(process.pid) in caught.value.found
    finally:
        process.kill()
        process.wait()
        session.temporary.rmdir()


def test_two_sessions_of_one_second_differ(tmp_path: Path) -> None:
    sessions = [Session.create(tmp_path) for _ in range(5)]
    assert len({session.id for session in sessions}) == 5
    for session in sessions:
        session.temporary.rmdir()
