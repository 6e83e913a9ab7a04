"""One HTTP server for all the fakes: a loopback port each, one thread that accepts, a thread a connection."""

from __future__ import annotations

import contextlib
import http.server
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    """A request as it came over the wire; `target` is path and query."""

    verb: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What goes back; `lost` closes the connection and sends nothing."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False


App = Callable[[Asked], Answer]


class Server:
    """Serves each app on its own port of 127.0.0.1, from `start` to `stop`."""

    def __init__(self, apps: Mapping[str, App]) -> None:
        self._apps = apps
        self._listeners: dict[socket.socket, App] = {}
        self._wake, self._woken = socket.socketpair()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.ports: dict[str, int] = {}

    def start(self) -> None:
        for name, app in self._apps.items():
            listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self._listeners[listener] = app
            self.ports[name] = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="fakes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every port and connection, and wait for the accepting thread."""
        self._wake.send(b"x")
        self._thread.join()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._wake.close()
        self._woken.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        for listener in self._listeners:
                            listener.close()
                        return
                    connection, address = key.fileobj.accept()  # type: ignore[union-attr]
                    app = self._listeners[key.fileobj]  # type: ignore[index]
                    threading.Thread(target=self._serve, args=(connection, address, app), name="fakes-connection", daemon=True).start()

    def _serve(self, connection: socket.socket, address: object, app: App) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            with contextlib.suppress(OSError):
                _Handler(connection, address, app)  # type: ignore[arg-type]
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        app: App = self.server  # type: ignore[assignment]
        asked = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, self._body())
        answer = app(asked)
        if answer.lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _answer

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the fakes keep a call log."""
