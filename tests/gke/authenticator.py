"""Who a token is, for the API server: its real token webhook asks here, and here the fakes of Google answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Caller = Callable[[str], str]


class Authenticator:
    """A TokenReview server on loopback.

    Attributes:
        caller: From a token to the e-mail of its holder, '' for one that nobody holds or that has ended.
    """

    def __init__(self) -> None:
        self.caller: Caller = lambda token: ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                email = outer.caller(review["spec"]["token"])
                status = {"authenticated": bool(email)}
                if email:
                    status["user"] = {"username": email, "groups": ["system:masters"]}  # type: ignore[assignment]
                body = json.dumps({"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def write_config(self, path: Path) -> None:
        """The file that --authentication-token-webhook-config-file takes."""
        cluster = {"name": "fakes", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}/"}}
        context = {"name": "fakes", "context": {"cluster": "fakes", "user": "server"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [{"name": "server"}], "contexts": [context]}
        path.write_text(json.dumps({**config, "current-context": "fakes"}))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
