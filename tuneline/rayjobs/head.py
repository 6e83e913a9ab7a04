"""A Ray head on this computer: its own ports, temp folder and token, on loopback only, never mixed up with another Ray."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.errors import ClusterError, StoreError
from tuneline.core.files import read_json, write_json
from tuneline.core.log import get_logger
from tuneline.rayjobs.processes import RUN_MARKER, end_processes, lives, run_processes, start_time

LOOPBACK = "127.0.0.1"
#: Each takes its own port; without one, two heads of a computer meet on Ray's defaults.
PORT_FLAGS = (
    "port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "node-manager-port",
    "object-manager-port",
    "ray-client-server-port",
)
#: Ports that only a variable sets.
PORT_VARIABLES = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
#: Below the range from which kernels take ports of outgoing connections and of port 0.
_PORTS = (10240, 32767)
_PORT_TRIES = 3
#: Ray's sockets add 66 characters, and a Unix socket's path has room for 107.
_LONGEST_TEMP_DIR = 45
_TEMP_NAME = re.compile(r"tl-[0-9a-f]{8}")
_OBJECT_STORE_BYTES = 100_000_000

_log = get_logger("rayjobs.head")
#: Heads that this process started, kept so that an ended one is reaped.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Head:
    """A Ray head as its record has it.

    Attributes:
        pid: Of `ray start --head --block`; 0 in a record written just before the start.
        started: Start time of that process, seconds since the epoch.
        ports: By Ray's flag or variable.
        temp_dir: Ray's own folder, mode 0700, gone with the head.
        token_path: File (0600) with the bearer token that every request needs.
    """

    run_id: str
    pid: int
    started: float
    ports: Mapping[str, int]
    dashboard_url: str
    temp_dir: str
    token_path: str

    @property
    def alive(self) -> bool:
        """Whether the head's process runs."""
        return self.pid > 0 and lives(self.pid, self.started)

    def token(self) -> str:
        """The bearer token."""
        return Path(self.token_path).read_text(encoding="ascii").strip()

    def answers(self) -> bool:
        """Whether the job service answers to this head's token, so that another head on the port does not count."""
        try:
            request = urllib.request.Request(f"{self.dashboard_url}/api/jobs/", headers={"Authorization": f"Bearer {self.token()}"})
            # No proxy: HTTP_PROXY would also catch loopback.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError, http.client.HTTPException):
            return False


def read_head(record: Path) -> Head | None:
    """The head in a record, alive or not; None where there is no record, or none that can be read: then the run's marker finds it."""
    try:
        return Head(**read_json(record))
    except FileNotFoundError:
        return None
    except (StoreError, TypeError) as error:
        _log.warning("%s is no record of a Ray head: %s", record, error)
        return None


def start_head(
    run_id: str,
    cpus: int,
    *,
    gpus: int | None = None,
    record: Path,
    log: Path,
    ready_seconds: float,
    clock: Clock = SYSTEM,
) -> Head:
    """Start a head and wait until its job service answers.

    Args:
        cpus: CPUs that Ray may give to tasks, not how many there are.
        gpus: GPUs likewise; None lets Ray count them.
        record: Where the head is written down, before anything is waited for, so that a killed launch can be adopted or swept.
        log: Takes the output of `ray start`; a pipe of the caller would block whoever reads it to its end.
        ready_seconds: Longest wait.

    Raises:
        ClusterError: If it ends or does not answer in time; nothing of it is left then.
    """
    deadline = Deadline.after(clock, ready_seconds)
    tries = _PORT_TRIES
    while True:
        head = _spawn(run_id, cpus, gpus, record, log)
        while head.alive and not deadline.passed:
            if head.answers():
                _log.info("Ray head of run %s answers at %s (pid %d)", run_id, head.dashboard_url, head.pid)
                return head
            clock.sleep(0.2)
        ended = not head.alive
        stop_head(run_id, record, Deadline.after(clock, 30), clock=clock)
        taken = [str(port) for port in head.ports.values() if not _is_free(port)]
        tries -= 1
        if not (ended and taken and tries):
            raise ClusterError(
                "the Ray head ended while starting" if ended else f"the Ray head did not answer within {ready_seconds:g} s",
                asked=f"a head with {cpus} CPUs on ports {', '.join(map(str, head.ports.values()))}",
                found="; ".join(filter(None, [f"ports taken: {', '.join(taken)}" if taken else "", _tail(log)])),
                next_move=f"read {log}; raise gpu_ready_minutes if it was still starting",
            )
        _log.warning("ports %s were taken by another program; trying others", ", ".join(taken))


def adopt_head(record: Path, *, ready_seconds: float = 0.0, clock: Clock = SYSTEM) -> Head | None:
    """The recorded head if its very process lives and answers.

    Args:
        ready_seconds: How long a head that lives but does not answer yet may take, as one whose launch was killed.
    """
    head = read_head(record)
    deadline = Deadline.after(clock, ready_seconds)
    while head is not None and head.alive:
        if head.answers():
            return head
        if deadline.passed:
            return None
        clock.sleep(0.2)
    return None


def stop_head(run_id: str, record: Path, deadline: Deadline, *, clock: Clock = SYSTEM) -> None:
    """End the head and every process of the run, then remove the head's temp folder and its record.

    Raises:
        ClusterError: If a process is left at the deadline.
    """
    head = read_head(record)

    def left() -> list[psutil.Process]:
        processes = run_processes(run_id)
        # Where the environment of a process cannot be read, the record still knows the head.
        if head is not None and head.alive and head.pid not in [process.pid for process in processes]:
            processes.append(psutil.Process(head.pid))
        return processes

    end_processes(left, f"run {run_id}", deadline, clock=clock)
    for child in _children[:]:
        if child.poll() is not None:
            _children.remove(child)
    if head is not None and _TEMP_NAME.fullmatch(Path(head.temp_dir).name):
        shutil.rmtree(head.temp_dir, ignore_errors=True)
    record.unlink(missing_ok=True)


def _spawn(run_id: str, cpus: int, gpus: int | None, record: Path, log: Path) -> Head:
    ports = _free_ports([*PORT_FLAGS, *PORT_VARIABLES])
    temp_dir = _make_temp_dir()
    head = Head(
        run_id=run_id,
        pid=0,
        started=0.0,
        ports=ports,
        dashboard_url=f"http://{LOOPBACK}:{ports['dashboard-port']}",
        temp_dir=str(temp_dir),
        token_path=str(temp_dir / "token"),
    )
    write_json(record, asdict(head))
    with open(os.open(head.token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as token:
        token.write(secrets.token_hex(32))
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        child = subprocess.Popen(
            _command(head, cpus, gpus),
            env=_environment(head),
            cwd=temp_dir,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _children.append(child)
    with contextlib.suppress(psutil.NoSuchProcess):
        head = replace(head, pid=child.pid, started=start_time(child.pid))
    write_json(record, asdict(head))
    return head


def _command(head: Head, cpus: int, gpus: int | None) -> list[str]:
    return [
        *(_interpreter(Path(head.temp_dir)), "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        f"--node-ip-address={LOOPBACK}",
        f"--dashboard-host={LOOPBACK}",
        f"--temp-dir={head.temp_dir}",
        f"--num-cpus={cpus}",
        *([] if gpus is None else [f"--num-gpus={gpus}"]),
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--{flag}={head.ports[flag]}" for flag in PORT_FLAGS),
    ]


def _interpreter(temp_dir: Path) -> str:
    """This interpreter under a name that needs no quotes: Ray puts it into shell commands, and files beside it into LD_PRELOAD."""
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    link = temp_dir / "venv"
    if not link.is_symlink():
        link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def _environment(head: Head) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    no_proxy = ",".join(filter(None, [inherited.get("NO_PROXY") or inherited.get("no_proxy"), LOOPBACK, "localhost"]))
    return {
        **inherited,
        **{variable: str(head.ports[variable]) for variable in PORT_VARIABLES},
        RUN_MARKER: head.run_id,
        # The venv may not be active, and Ray starts programs by name.
        "PATH": os.pathsep.join([str(Path(_interpreter(Path(head.temp_dir))).parent), inherited.get("PATH", os.defpath)]),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": head.token_path,
        # With Ray's default (1 on macOS) or unset, 127.0.0.1 becomes the host's address and daemons listen on all interfaces.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray writes process titles over the environment, and with it over the marker by which we find its processes.
        "SPT_NOENV": "1",
    }


def _make_temp_dir() -> Path:
    name = f"tl-{secrets.token_hex(4)}"
    base = os.environ.get("TMPDIR", "")
    if not (os.path.isdir(base) and os.path.isabs(base) and len(os.path.join(base, name)) <= _LONGEST_TEMP_DIR):
        base = "/tmp"
    path = Path(base, name)
    path.mkdir(mode=0o700)
    return path


def _free_ports(names: Sequence[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    while len(ports) < len(names):
        port = random.randint(*_PORTS)
        if port not in ports.values() and _is_free(port):
            ports[names[len(ports)]] = port
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Lets a port pass whose last connection just closed; one that somebody listens on is still refused.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _tail(log: Path, lines: int = 5) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
