from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.rayjobs import FakeClock
from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.errors import ClusterError
from tuneline.engines.base import JobRequest
from tuneline.rayjobs import local as module
from tuneline.rayjobs.base import JobState, JobStatus
from tuneline.rayjobs.head import Head
from tuneline.rayjobs.local import LocalCluster, LocalJobRunner
from tuneline.rayjobs.processes import start_time

NAME = "tlx-a1"
REQUEST = JobRequest(("/a folder/python", "-m", "job", "{'a': \"b\"}"), env={"A": "1"}, metadata={"step": "0"})


class RayStatus(StrEnum):
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass
class Info:
    status: RayStatus
    message: str | None = None


@dataclass
class FakeClient:
    """Ray's client, down to its error texts."""

    jobs: dict[str, Info] = field(default_factory=dict)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None
    submit_error: Exception | None = None
    stops: int = 0

    def get_job_info(self, name: str) -> Info:
        if self.error:
            raise self.error
        if name not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {name} does not exist.")
        return self.jobs[name]

    def submit_job(self, **arguments: Any) -> str:
        if self.submit_error:
            raise self.submit_error
        self.submitted.append(arguments)
        self.jobs[arguments["submission_id"]] = Info(RayStatus.RUNNING)
        return str(arguments["submission_id"])

    def stop_job(self, name: str) -> bool:
        self.stops += 1
        self.jobs[name] = Info(RayStatus.STOPPED)
        return True


class Room:
    def __init__(self, root: Path) -> None:
        self.clock, self.client = FakeClock(), FakeClient()
        self.root = root

    def runner(self, *, alive: bool = True) -> LocalJobRunner:
        pid = os.getpid()
        head = Head("tlx", pid, start_time(pid) - (0 if alive else 1000), {}, "http://127.0.0.1:1", str(self.root), "")
        runner = LocalJobRunner(head, clock=self.clock)
        runner.__dict__["_client"] = self.client
        return runner


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_job_is_submitted_once(room: Room) -> None:
    assert room.runner().submit(NAME, REQUEST)
    assert not room.runner().submit(NAME, REQUEST)
    (call,) = room.client.submitted
    assert call["submission_id"] == NAME
    assert call["entrypoint"] == "exec '/a folder/python' -m job '{'\"'\"'a'\"'\"': \"b\"}'"
    assert call["runtime_env"] == {"env_vars": {"A": "1", "TUNELINE_JOB": NAME}}
    assert call["metadata"] == {"step": "0"}


def test_a_name_that_was_taken_meanwhile_is_adopted(room: Room) -> None:
    room.client.submit_error = RuntimeError("status code 500: Traceback ...\nValueError: Job with submission_id tlx-a1 already exists")
    assert not room.runner().submit(NAME, REQUEST)


def test_a_lost_answer_to_a_submission_is_looked_up(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit_job(**arguments: Any) -> str:
        room.client.jobs[NAME] = Info(RayStatus.RUNNING)
        raise OSError("read timed out")

    monkeypatch.setattr(room.client, "submit_job", submit_job)
    assert room.runner().submit(NAME, REQUEST)


def test_a_refused_submission_names_the_servers_last_line(room: Room) -> None:
    room.client.submit_error = RuntimeError("Request failed with status code 500: Traceback\n  File x\nValueError: bad env_vars")
    with pytest.raises(ClusterError) as raised:
        room.runner().submit(NAME, REQUEST)
    assert raised.value.found == "ValueError: bad env_vars"


def test_states_and_messages_are_rays(room: Room) -> None:
    room.client.jobs[NAME] = Info(RayStatus.FAILED, "exit code 3")
    assert room.runner().status(NAME) == JobStatus(JobState.FAILED, "exit code 3")
    assert room.runner().status("tlx-a2").state is JobState.UNKNOWN


def test_a_head_whose_process_is_gone_is_lost_at_once(room: Room) -> None:
    room.client.error = ConnectionError("refused")
    assert room.runner(alive=False).status(NAME).state is JobState.HEAD_LOST
    assert room.clock.time == 1_000_000


def test_a_head_that_is_silent_for_a_while_is_not_lost(room: Room) -> None:
    room.client.jobs[NAME] = Info(RayStatus.RUNNING)
    room.client.error = ConnectionError("refused")
    room.clock.after(20, lambda: setattr(room.client, "error", None))
    assert room.runner().status(NAME).state is JobState.RUNNING


def test_a_head_that_stays_silent_is_lost(room: Room) -> None:
    room.client.error = RuntimeError("Request failed with status code 500: GCS is gone")
    status = room.runner().status(NAME)
    assert status.state is JobState.HEAD_LOST
    assert "did not answer for 60 s" in status.message


def test_nothing_is_submitted_to_a_lost_head(room: Room) -> None:
    room.client.error = ConnectionError("refused")
    with pytest.raises(ClusterError, match="has no Ray head"):
        room.runner(alive=False).submit(NAME, REQUEST)


@pytest.mark.parametrize("variable", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_no_variable_sends_a_job_to_another_cluster(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *arguments: Any) -> None:
            """No line on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    (tmp_path / "token").write_text("t")
    head = Head("tlx", 1, 0.0, {}, f"http://127.0.0.1:{server.server_port}", str(tmp_path), str(tmp_path / "token"))
    try:
        LocalJobRunner(head, clock=FakeClock()).status(NAME)
    finally:
        server.shutdown()
        server.server_close()
    assert asked


def test_another_head_on_the_port_is_a_lost_head(room: Room) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401, "Unauthorized")

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    (room.root / "token").write_text("mine")
    pid = os.getpid()
    head = Head("tlx", pid, start_time(pid), {}, f"http://127.0.0.1:{server.server_port}", str(room.root), str(room.root / "token"))
    status = LocalJobRunner(head, clock=room.clock).status(NAME)
    server.shutdown()
    thread.join()
    server.server_close()
    assert status.state is JobState.HEAD_LOST
    assert "another Ray head answers on this port" in status.message


def test_stop_asks_once_and_waits_for_the_end(room: Room) -> None:
    room.client.jobs[NAME] = Info(RayStatus.RUNNING)
    room.runner().stop(NAME)
    assert room.client.jobs[NAME].status is RayStatus.STOPPED
    room.runner().stop(NAME)
    room.runner().stop("tlx-a9")
    assert room.client.stops == 1


def test_a_job_that_does_not_stop_is_an_error(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.client.jobs[NAME] = Info(RayStatus.RUNNING)
    monkeypatch.setattr(room.client, "stop_job", lambda name: True)
    with pytest.raises(ClusterError, match="does not stop"):
        room.runner().stop(NAME)


def log_file(root: Path) -> Path:
    path = root / "session_latest" / "logs" / f"job-driver-{NAME}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_the_log_is_read_by_characters_from_any_offset(room: Room) -> None:
    runner = room.runner()
    assert runner.logs(NAME, 0) == ("", 0)
    log_file(room.root).write_bytes("äöü\r\none".encode() + "ü".encode()[:1])
    assert runner.logs(NAME, 0) == ("äöü\r\none", 8)
    with open(log_file(room.root), "ab") as handle:
        handle.write("ü".encode()[1:] + b"!")
    assert runner.logs(NAME, 8) == ("ü!", 10)
    assert room.runner().logs(NAME, 4) == ("\none" + "ü!", 10)
    assert room.runner().logs(NAME, 99) == ("", 10)


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(0, 40))
def test_reading_in_pieces_gives_the_whole(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], offset: int) -> None:
    room = Room(tmp_path_factory.mktemp("logs"))
    runner, text = room.runner(), ""
    for piece in pieces:
        with open(log_file(room.root), "ab") as handle:
            handle.write(piece)
        new, after = runner.logs(NAME, len(text))
        text += new
        assert after == len(text)
    again, _ = room.runner().logs(NAME, min(offset, len(text)))
    assert again == text[offset:]


def test_a_cluster_has_a_cpu_for_each_worker_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    head = Head("tlx", 0, 0.0, {}, "http://127.0.0.1:1", str(tmp_path), "")

    def start_head(run_id: str, cpus: int, **options: Any) -> Head:
        calls.append((run_id, cpus, options["ready_seconds"], options["record"], options["log"]))
        return head

    monkeypatch.setattr(module, "start_head", start_head)
    store = Store(str(tmp_path))
    cluster = LocalCluster.of(RunSpec.build({"gpu_workers": 4, "gpu_ready_minutes": 2.0}), store, "tlx", clock=FakeClock())
    assert cluster.attach() is None
    cluster.ensure()
    record = Path(store.raycluster("tlx"))
    assert calls == [("tlx", 5, 120, record, Path(store.run_logs("tlx"), "raycluster.log"))]
    assert cluster.record == str(record)


def test_a_cluster_adopts_its_living_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head("tlx", 1, 0.0, {}, "http://127.0.0.1:1", str(tmp_path), "")
    monkeypatch.setattr(module, "adopt_head", lambda record, **options: head)
    monkeypatch.setattr(module, "start_head", lambda *arguments, **options: pytest.fail("started a second head"))
    cluster = LocalCluster.of(RunSpec.build({}), Store(str(tmp_path)), "tlx", clock=FakeClock())
    assert cluster.ensure()._head == head
