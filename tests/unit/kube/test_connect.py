"""Endpoints in order, and tokens that are really renewed by the pinned kubernetes package."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import client as kubernetes_client

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking, failure
from tuneline.kube.connect import RENEW_SECONDS, Endpoint, Token, connect, connect_kubeconfig, google_tokens
from tuneline.kube.errors import AccessDenied, ClusterUnreachable

Serve = Callable[[Handler], Server]
HOUR = 3600.0


class Mint:
    """Tokens token-1, token-2, ... that live an hour; the server takes the newest only."""

    def __init__(self, clock: Ticking) -> None:
        self.clock, self.count = clock, 0

    def __call__(self) -> Token:
        self.count += 1
        return Token(f"token-{self.count}", self.clock.now() + HOUR)

    def handle(self, request: Request) -> Answer:
        valid = request.headers.get("authorization") == f"Bearer token-{self.count}"
        return Answer(body={"items": []}) if valid else failure(401, "Unauthorized")


def test_the_token_is_sent_and_renewed_before_it_ends(serve: Serve, clock: Ticking) -> None:
    mint = Mint(clock)
    server = serve(mint.handle)
    api = connect(Endpoint(dns=server.url), mint, clock=clock)
    api.call("GET", "/api/v1/pods")
    assert mint.count == 1
    clock.time += HOUR - RENEW_SECONDS - 1
    api.call("GET", "/api/v1/pods")
    assert mint.count == 1, "not before its time"
    clock.time += 2
    api.call("GET", "/api/v1/pods")
    assert mint.count == 2
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer token-1"] * 3 + ["Bearer token-2"], "/version, and three calls"


def test_a_token_that_is_revoked_early_is_asked_for_again_once(serve: Serve, clock: Ticking) -> None:
    mint = Mint(clock)
    server = serve(mint.handle)
    api = connect(Endpoint(dns=server.url), mint, clock=clock)
    mint.count += 1  # the server takes token-2 now, and ours is token-1
    assert api.call("GET", "/api/v1/pods") == {"items": []}
    assert mint.count == 3
    assert list(api.stream("/api/v1/pods", {}, idle_seconds=5)) == ['{"items": []}']
    mint.count += 1
    assert list(api.stream("/api/v1/pods", {}, idle_seconds=5)) == ['{"items": []}'], "watches and logs too"


def test_a_caller_whom_no_token_helps_is_told_so_after_one_new_token(serve: Serve, clock: Ticking) -> None:
    mint = Mint(clock)
    server = serve(lambda request: failure(401, "Unauthorized") if request.path != "/version" else Answer(body={}))
    api = connect(Endpoint(dns=server.url), mint, clock=clock)
    with pytest.raises(AccessDenied):
        api.call("GET", "/api/v1/pods")
    assert mint.count == 2


def test_without_a_seed_the_package_would_send_no_header_at_all() -> None:
    """Why connect seeds api_key; if this fails, the package has changed and the seed can go."""
    configuration = kubernetes_client.Configuration()
    configuration.refresh_api_key_hook = lambda held: held.api_key.update(authorization="x")
    assert configuration.auth_settings() == {}


def test_the_ip_endpoint_is_taken_where_the_dns_endpoint_refuses(serve: Serve, clock: Ticking) -> None:
    mint = Mint(clock)
    front = serve(lambda request: Answer(403, "<html>Your client does not have permission</html>"))
    server = serve(mint.handle)
    api = connect(Endpoint(dns=front.url, ip=server.url), mint, clock=clock)
    assert api.host == server.url


def test_all_endpoints_are_named_where_none_can_be_used(serve: Serve, clock: Ticking) -> None:
    front = serve(lambda request: Answer(403, "<html>no external traffic</html>"))
    gone = serve(lambda request: Answer())
    gone.close()
    with pytest.raises(ClusterUnreachable) as caught:
        connect(Endpoint(dns=front.url, ip=gone.url), Mint(clock), clock=clock)
    assert "DNS endpoint" in caught.value.found
    assert "no external traffic" in caught.value.found
    assert gone.url in caught.value.found
    assert "allow external traffic" in caught.value.next_move
    with pytest.raises(ClusterUnreachable, match="no endpoint"):
        connect(Endpoint(), Mint(clock), clock=clock)


def test_the_cluster_ca_is_for_the_ip_endpoint_only(serve: Serve, clock: Ticking) -> None:
    server = serve(Mint(clock).handle)
    mint = Mint(clock)
    server_api = connect(Endpoint(dns=serve(mint.handle).url, ip=server.url, ca=base64.b64encode(b"pem").decode()), mint, clock=clock)
    assert server_api.configuration.ssl_ca_cert is None
    dead = serve(lambda request: Answer(403, ""))
    mint = Mint(clock)
    api = connect(Endpoint(dns=dead.url, ip=serve(mint.handle).url, ca=base64.b64encode(b"pem").decode()), mint, clock=clock)
    assert Path(api.configuration.ssl_ca_cert).read_bytes() == b"pem"


def test_google_credentials_become_tokens_with_their_end() -> None:
    credentials = SimpleNamespace(token="", expiry=None)

    def refresh(request: object) -> None:
        credentials.token, credentials.expiry = "ya29.x", datetime(2026, 11, 30, 12, 0, 0)

    credentials.refresh = refresh
    assert google_tokens(credentials)() == Token("ya29.x", 1796040000.0)


def test_a_kubeconfig_connects_and_a_missing_one_is_told(tmp_path: Path, serve: Serve, clock: Ticking) -> None:
    server = serve(lambda request: Answer(body={"auth": request.headers.get("authorization")}))
    config = tmp_path / "config"
    config.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: '{server.url}'}}}}]\n"
        "users: [{name: u, user: {token: abc}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    assert connect_kubeconfig(config, clock=clock).call("GET", "/version") == {"auth": "Bearer abc"}
    with pytest.raises(ClusterUnreachable, match="kubeconfig"):
        connect_kubeconfig(tmp_path / "none", clock=clock)
