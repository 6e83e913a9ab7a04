"""Connecting to a cluster: the DNS endpoint first, then the IP endpoint; tokens that are renewed before they end.

With the kubernetes package two things go wrong silently, and both are dealt with here: the refresh hook is never called unless a token
stands in the configuration already, and the cluster's own CA refuses the DNS endpoint, whose certificate is public.
"""

from __future__ import annotations

import atexit
import base64
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import get_logger
from tuneline.kube.api import Api
from tuneline.kube.errors import ClusterUnreachable, KubeError

_log = get_logger("kube")

#: A token is renewed this long before it ends: a request that starts with it must also finish with it.
RENEW_SECONDS = 300.0


@dataclass(frozen=True)
class Token:
    """A bearer token and when it ends, in seconds since the epoch."""

    value: str
    expires: float


TokenSource = Callable[[], Token]


def google_tokens(credentials: Any) -> TokenSource:
    """Tokens of google-auth credentials (impersonated or not), a new one at each call."""

    def mint() -> Token:
        import calendar

        import google.auth.transport.requests

        credentials.refresh(google.auth.transport.requests.Request())
        # google-auth keeps the end as a naive time in UTC.
        return Token(credentials.token, float(calendar.timegm(credentials.expiry.utctimetuple())))

    return mint


class _Refresh:
    """The kubernetes package's hook: called before every request."""

    def __init__(self, source: TokenSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = Lock()
        self._token: Token | None = None

    def expire(self) -> None:
        """Ask for a new token at the next request."""
        with self._lock:
            self._token = None

    def __call__(self, configuration: kubernetes_client.Configuration) -> None:
        with self._lock:
            if self._token is None or self._token.expires - self._clock.now() < RENEW_SECONDS:
                self._token = self._source()
            configuration.api_key["authorization"] = self._token.value


@dataclass(frozen=True)
class Endpoint:
    """Where a cluster's control plane is.

    Attributes:
        dns: Host name of the DNS endpoint, '' for none. Its certificate is public.
        ip: Address of the IP endpoint, '' for none.
        ca: The cluster's CA for the IP endpoint, base64 of PEM as GKE gives it.
    """

    dns: str = ""
    ip: str = ""
    ca: str = ""


def connect(endpoint: Endpoint, tokens: TokenSource, *, clock: Clock = SYSTEM) -> Api:
    """The first endpoint that answers, the DNS endpoint before the IP endpoint.

    Raises:
        ClusterUnreachable: If none does; the message says what each answered.
    """
    found: list[str] = []
    for name, host, ca in (("DNS endpoint", endpoint.dns, ""), ("IP endpoint", endpoint.ip, endpoint.ca)):
        if not host:
            continue
        client = kubernetes_client.ApiClient(_configuration(host, ca, tokens, clock))
        try:
            Api(client, clock=clock).call("GET", "/version", retry=False)
        except KubeError as error:
            found.append(f"{name} {host}: {error.found or error.message}")
            _log.warning("%s", found[-1])
        else:
            return Api(client, clock=clock)
    raise ClusterUnreachable(
        "no endpoint of the cluster can be used",
        found="; ".join(found) or "the cluster has no endpoint",
        next_move="allow external traffic on the DNS endpoint and grant container.clusters.connect, or give a route to the IP endpoint",
    )


def connect_kubeconfig(path: Path, *, context: str = "", clock: Clock = SYSTEM) -> Api:
    """The cluster of a kubeconfig file: kind, or any cluster that kubectl reaches.

    Raises:
        ClusterUnreachable: If the file names no cluster that can be used.
    """
    try:
        client = kubernetes_config.new_client_from_config(config_file=str(path), context=context or None)
    except kubernetes_config.ConfigException as error:
        raise ClusterUnreachable(
            "the kubeconfig cannot be used", asked=str(path), found=str(error), next_move="check KUBECONFIG and its context"
        ) from error
    return Api(client, clock=clock)


def _configuration(host: str, ca: str, tokens: TokenSource, clock: Clock) -> kubernetes_client.Configuration:
    configuration = kubernetes_client.Configuration()
    configuration.host = host if "://" in host else f"https://{host}"
    if ca:
        with tempfile.NamedTemporaryFile("wb", suffix=".crt", delete=False) as file:
            file.write(base64.b64decode(ca))
        atexit.register(Path(file.name).unlink, missing_ok=True)
        configuration.ssl_ca_cert = file.name
    configuration.api_key_prefix["authorization"] = "Bearer"
    configuration.refresh_api_key_hook = _Refresh(tokens, clock)
    # auth_settings() sends no header, and never calls the hook, unless a key is there already.
    configuration.api_key["authorization"] = ""
    return configuration
