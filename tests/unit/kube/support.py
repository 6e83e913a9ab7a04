"""A clock that only sleeping moves, and an HTTP server on loopback whose answers a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client as kubernetes_client

from tuneline.kube.api import Api


@dataclass
class Ticking:
    """Virtual time."""

    time: float = 1_900_000_000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """Status and body: a dict as JSON, a text, or lines that are sent one after another; `cut` ends them without an end."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


Handler = Callable[[Request], Answer]

#: What discovery says of the kinds that tests use.
DISCOVERY: dict[str, list[tuple[str, str, bool]]] = {
    "/api/v1": [("Pod", "pods", True), ("ConfigMap", "configmaps", True), ("Namespace", "namespaces", False), ("Event", "events", True)],
    "/apis/ray.io/v1": [("RayCluster", "rayclusters", True)],
}


class Server:
    """Serves until the test ends; `requests` holds what came, discovery left out."""

    def __init__(self, handler: Handler) -> None:
        self.requests: list[Request] = []
        outer = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer takes 40 ms

            def _serve(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                text = self.rfile.read(length)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                request = Request(
                    self.command,
                    url.path,
                    query,
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(text) if text else None,
                )
                if url.path in DISCOVERY:
                    resources = [{"kind": kind, "name": name, "namespaced": namespaced} for kind, name, namespaced in DISCOVERY[url.path]]
                    self._send(Answer(body={"resources": resources}))
                    return
                outer.requests.append(request)
                self._send(handler(request))

            def _send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if isinstance(answer.body, list):
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self._chunks(answer.body)
                    if answer.cut:
                        self.close_connection = True
                        self.connection.close()
                    else:
                        self.wfile.write(b"0\r\n\r\n")
                    return
                data = (
                    answer.body.encode()
                    if isinstance(answer.body, str)
                    else json.dumps(answer.body).encode()
                    if answer.body is not None
                    else b""
                )
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def _chunks(self, lines: Iterable[Any]) -> None:
                for line in lines:
                    data = (line if isinstance(line, str) else json.dumps(line) + "\n").encode()
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                    self.wfile.flush()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on the test's output."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._http.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def api(self, clock: Ticking) -> Api:
        """A client of this server without any token."""
        configuration = kubernetes_client.Configuration()
        configuration.host = self.url
        return Api(kubernetes_client.ApiClient(configuration), clock=clock)


def failure(code: int, message: str = "", **details: Any) -> Answer:
    """A Kubernetes Status that says no."""
    return Answer(code, {"kind": "Status", "code": code, "message": message, "details": details})
