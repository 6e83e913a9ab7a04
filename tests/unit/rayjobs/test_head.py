from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.fakes.rayjobs import FakeClock
from tuneline.core.clock import SYSTEM, Deadline
from tuneline.core.errors import ClusterError
from tuneline.core.files import read_json, write_json
from tuneline.rayjobs import head as module
from tuneline.rayjobs.head import Head, adopt_head, read_head, start_head, stop_head
from tuneline.rayjobs.processes import run_processes, start_time

RUN = f"tlhead{os.getpid()}"


class Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.headers["Authorization"] == "Bearer right" else 401)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def make_head(tmp_path: Path, *, url: str = "http://127.0.0.1:1", token: str = "right", pid: int | None = None) -> Head:
    (tmp_path / "token").write_text(token)
    pid = os.getpid() if pid is None else pid
    return Head(RUN, pid, start_time(os.getpid()), {"port": 1}, url, str(tmp_path), str(tmp_path / "token"))


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Start this Python code in place of Ray."""
    monkeypatch.setattr(module, "_command", lambda head, cpus, gpus: [sys.executable, "-c", code])


def test_a_head_answers_only_to_its_own_token(tmp_path: Path, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert make_head(tmp_path, url=service).answers()
    assert not make_head(tmp_path, url=service, token="wrong").answers()
    assert not make_head(tmp_path).answers()
    (tmp_path / "token").unlink()
    assert not Head(RUN, 1, 0.0, {}, service, str(tmp_path), str(tmp_path / "token")).answers()


def test_adopted_is_a_head_whose_process_lives_and_answers(tmp_path: Path, service: str) -> None:
    record = tmp_path / "runs" / "raycluster.json"
    assert adopt_head(record) is None
    head = make_head(tmp_path, url=service)
    write_json(record, asdict(head))
    assert adopt_head(record) == head
    write_json(record, {**asdict(head), "started": head.started - 60})
    assert adopt_head(record) is None, "another process has the pid"
    write_json(record, {**asdict(head), "pid": 0})
    assert adopt_head(record) is None, "killed between the record and the start"


@pytest.mark.parametrize("record", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_record_is_no_head_and_goes(tmp_path: Path, record: str) -> None:
    path = tmp_path / "raycluster.json"
    path.write_text(record)
    assert read_head(path) is None
    assert adopt_head(path) is None
    stop_head(RUN, path, Deadline.after(SYSTEM, 5))
    assert not path.exists()


def test_a_head_that_is_still_starting_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, record = FakeClock(), tmp_path / "raycluster.json"
    write_json(record, asdict(make_head(tmp_path)))
    monkeypatch.setattr(Head, "answers", lambda self: clock.time > 1_000_010)
    assert adopt_head(record, clock=clock) is None
    assert adopt_head(record, ready_seconds=5, clock=clock) is None
    assert adopt_head(record, ready_seconds=20, clock=clock) is not None


def test_the_record_is_there_before_the_head_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "run" / "raycluster.json"
    stand_in(monkeypatch, "import time; time.sleep(60)")
    seen: list[Head | None] = []

    def answers(self: Head) -> bool:
        seen.append(read_head(record))
        return True

    monkeypatch.setattr(Head, "answers", answers)
    head = start_head(RUN, 3, record=record, log=tmp_path / "ray.log", ready_seconds=20)
    assert seen == [head]
    assert head.alive
    assert [process.pid for process in run_processes(RUN)] == [head.pid]
    assert os.getsid(head.pid) == head.pid
    assert stat.S_IMODE(os.stat(head.token_path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(head.temp_dir).st_mode) == 0o700
    assert len(head.token()) == 64

    stop_head(RUN, record, Deadline.after(SYSTEM, 20))
    assert not head.alive
    assert run_processes(RUN) == []
    assert not Path(head.temp_dir).exists()
    assert not record.exists()
    stop_head(RUN, record, Deadline.after(SYSTEM, 20))


def test_a_head_that_ends_while_starting_is_an_error_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "raycluster.json"
    stand_in(monkeypatch, "print('no such option: --zap')")
    with pytest.raises(ClusterError, match="ended while starting") as raised:
        start_head(RUN, 3, record=record, log=tmp_path / "ray.log", ready_seconds=20)
    assert "no such option: --zap" in raised.value.found
    assert not record.exists()


def test_a_head_that_does_not_answer_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(Head, "answers", lambda self: False)
    with pytest.raises(ClusterError, match="did not answer within 0 s"):
        start_head(RUN, 3, record=tmp_path / "raycluster.json", log=tmp_path / "ray.log", ready_seconds=0)
    assert run_processes(RUN) == []


def test_a_port_that_another_program_took_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Head] = []

    def command(head: Head, cpus: int, gpus: int | None) -> list[str]:
        starts.append(head)
        return [sys.executable, "-c", "pass" if len(starts) == 1 else "import time; time.sleep(60)"]

    free = module._is_free
    monkeypatch.setattr(module, "_command", command)
    monkeypatch.setattr(module, "_is_free", lambda port: free(port) and not (len(starts) == 1 and port == starts[0].ports["port"]))
    monkeypatch.setattr(Head, "answers", lambda self: len(starts) == 2)
    record = tmp_path / "raycluster.json"
    head = start_head(RUN, 3, record=record, log=tmp_path / "ray.log", ready_seconds=20)
    assert len(starts) == 2
    assert not Path(starts[0].temp_dir).exists()
    assert read_json(record)["pid"] == head.pid
    stop_head(RUN, record, Deadline.after(SYSTEM, 20))


def test_ports_differ_are_free_and_lie_below_the_ephemeral_range() -> None:
    ports = module._free_ports([*module.PORT_FLAGS, *module.PORT_VARIABLES])
    assert len(set(ports.values())) == len(ports) == 11
    assert all(10240 <= port < 32768 for port in ports.values())
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not module._is_free(server.getsockname()[1])


@pytest.mark.parametrize(("base", "used"), [("short", True), ("d" * 60, False), ("missing", False)])
def test_the_temp_dir_is_short(base: str, used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = Path("/tmp", f"{os.getpid()}{base}")
    if base != "missing":
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    made = module._make_temp_dir()
    assert made.parent == (folder if used else Path("/tmp"))
    assert len(str(made)) <= 45
    made.rmdir()
    if base != "missing":
        folder.rmdir()


def test_the_command_binds_loopback_and_own_ports(tmp_path: Path) -> None:
    ports = {name: 20000 + number for number, name in enumerate([*module.PORT_FLAGS, *module.PORT_VARIABLES])}
    head = Head(RUN, 1, 0.0, ports, "", "/tmp/tl-00000000", "/tmp/tl-00000000/token")
    command = module._command(head, 3, 1)
    assert {"--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=3", "--num-gpus=1", "--block"} <= set(command)
    assert {f"--{flag}={ports[flag]}" for flag in module.PORT_FLAGS} <= set(command)
    assert not [argument for argument in module._command(head, 3, None) if "gpus" in argument]


def test_the_environment_marks_authenticates_and_forgets_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    monkeypatch.setenv("NO_PROXY", "corp.example")
    ports = dict.fromkeys([*module.PORT_FLAGS, *module.PORT_VARIABLES], 20000)
    environment = module._environment(Head(RUN, 1, 0.0, ports, "", "/tmp/tl-00000000", "/tmp/tl-00000000/token"))
    assert "RAY_ADDRESS" not in environment
    assert environment["TUNELINE_RUN_ID"] == RUN
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/tmp/tl-00000000/token"
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert environment["NO_PROXY"] == "corp.example,127.0.0.1,localhost"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
