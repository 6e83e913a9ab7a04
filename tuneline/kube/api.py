"""Calls to one API server: paths from its own discovery, retries that end, typed errors.

TLS, proxies and client certificates come from the Kubernetes client's configuration, and so does the Authorization header, which is
asked for again before each request: tokens are refreshed by connect's hook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client as kubernetes_client

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.log import get_logger
from tuneline.kube.errors import AccessDenied, ApplyConflict, ClusterUnreachable, KindMissing, KubeError, ManifestRefused

_log = get_logger("kube")

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
#: GKE replaces its API server when it upgrades or resizes it: some minutes without an answer are no failure.
RETRY_SECONDS = 300.0
_CONNECT_SECONDS = 10.0
_TRANSIENT = (429, 500, 502, 503, 504)
#: Texts of a 500 that will not go away: server-side apply of a field that the schema does not have, on older servers.
_PERMANENT_500 = ("not declared in schema", "failed to create typed patch object", "failed to create manager")


@dataclass(frozen=True)
class Ref:
    """The name of one object; namespace '' where the kind has none."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Ref:
        """The name that an object carries."""
        metadata = body["metadata"]
        return cls(str(body["apiVersion"]), str(body["kind"]), str(metadata["name"]), str(metadata.get("namespace", "")))

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class ApiError(Exception):
    """An answer other than 2xx, before it becomes a typed error; it does not leave this package."""

    def __init__(self, status: int, body: Mapping[str, Any], text: str) -> None:
        self.status = status
        self.body = body
        self.message = str(body.get("message") or text[:500] or f"HTTP {status}")
        super().__init__(f"{status}: {self.message}")

    @property
    def from_kubernetes(self) -> bool:
        """Whether an API server wrote this answer, not something in front of it."""
        return self.body.get("kind") == "Status"


class Api:
    """One API server.

    Args:
        client: A configured client of the kubernetes package.
        clock: For retries.
    """

    def __init__(self, client: kubernetes_client.ApiClient, *, clock: Clock = SYSTEM, retry_seconds: float = RETRY_SECONDS) -> None:
        self.clock = clock
        self._client = client
        self._retry_seconds = retry_seconds
        self._served: dict[str, dict[str, tuple[str, bool]]] = {}

    @property
    def host(self) -> str:
        """URL of the server."""
        return str(self._client.configuration.host)

    @property
    def configuration(self) -> kubernetes_client.Configuration:
        """Of the client: host, CA and authorization, for tools that connect by themselves."""
        return self._client.configuration

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        about: str = "",
        retry: bool = True,
    ) -> Any:
        """One request; the answer's JSON.

        Transient answers and broken connections are tried again, with growing pauses, for RETRY_SECONDS: use it for requests that may
        arrive twice.

        Raises:
            ApiError: 404, 409 and 410, which callers expect.
            KubeError: A typed error for everything else.
        """
        deadline, pause = Deadline.after(self.clock, self._retry_seconds if retry else 0.0), 1.0
        refreshed = False
        while True:
            try:
                response = self._send(method, path, query, body, content_type, read_seconds=60.0)
                text = response.data.decode("utf-8", errors="replace")
            except urllib3.exceptions.HTTPError as error:
                failure: Exception = error
                if not is_transient(error) or deadline.passed:
                    raise self._unreachable(error) from error
            else:
                if 200 <= response.status < 300:
                    return json.loads(text) if text else None
                failure = answer = ApiError(response.status, _json_object(text), text)
                if answer.status == 401 and not refreshed and self._expire_token():
                    refreshed = True
                    continue
                if not _retried(answer) or deadline.passed:
                    raise self._typed(answer, method, path, about) from answer
            wait = min(pause, max(deadline.left, 0.05))
            _log.warning("%s %s: %s; trying again in %.0f s", method, path, failure, wait)
            self.clock.sleep(wait)
            pause = min(pause * 2, 30.0)

    def stream(self, path: str, query: Mapping[str, str], *, idle_seconds: float) -> Iterator[str]:
        """Lines of an answer that does not end (watch, log), until the server closes it; only the last may lack its newline.

        Args:
            idle_seconds: Longest time without a byte.

        Raises:
            ApiError: An answer other than 2xx.
            urllib3.exceptions.HTTPError: The connection broke; the caller knows where to go on.
        """
        response = self._send("GET", path, query, None, "application/json", read_seconds=idle_seconds)
        if response.status == 401 and self._expire_token():
            response.close()
            response = self._send("GET", path, query, None, "application/json", read_seconds=idle_seconds)
        try:
            if not 200 <= response.status < 300:
                text = response.data.decode("utf-8", errors="replace")
                answer = ApiError(response.status, _json_object(text), text)
                raise answer if answer.status in (400, 404, 410) or _retried(answer) else self._typed(answer, "GET", path, "")
            buffer = b""
            for chunk in response.stream(amt=None, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", errors="replace") + "\n"
            if buffer:
                yield buffer.decode("utf-8", errors="replace")
        finally:
            response.close()

    def path(self, ref: Ref) -> str:
        """The path of one object.

        Raises:
            KindMissing: If the server does not serve its kind.
        """
        return f"{self.collection(ref.api_version, ref.kind, ref.namespace)}/{quote(ref.name, safe='')}"

    def collection(self, api_version: str, kind: str, namespace: str = "") -> str:
        """The path of all objects of a kind, in one namespace or in all of them.

        Raises:
            KindMissing: If the server does not serve it.
        """
        kinds = self._kinds(api_version)
        if kind not in kinds:
            self._served.pop(api_version, None)  # a CRD may have come since
            kinds = self._kinds(api_version)
        if kind not in kinds:
            raise KindMissing(
                f"the cluster serves no {kind} of {api_version}",
                asked=f"{api_version} {kind}",
                choices=sorted(kinds),
                next_move="install its CRD or enable the add-on that brings it, then run again",
            )
        plural, namespaced = kinds[kind]
        base = _group_path(api_version)
        return f"{base}/namespaces/{quote(namespace, safe='')}/{plural}" if namespaced and namespace else f"{base}/{plural}"

    def preferred_version(self, group: str) -> str:
        """`group/version` that the server prefers of an API group, '' where it does not serve the group."""
        groups = self.call("GET", "/apis")["groups"]
        return next((str(found["preferredVersion"]["groupVersion"]) for found in groups if found["name"] == group), "")

    def _kinds(self, api_version: str) -> dict[str, tuple[str, bool]]:
        if api_version not in self._served:
            try:
                resources = self.call("GET", _group_path(api_version))["resources"]
            except ApiError as error:
                if error.status != 404:
                    raise KubeError(error.message, asked=f"what {api_version} holds") from error
                return {}
            self._served[api_version] = {
                item["kind"]: (item["name"], bool(item["namespaced"])) for item in resources if "/" not in item["name"]
            }
        return self._served[api_version]

    def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content_type: str, *, read_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        headers: dict[str, str] = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "tuneline"}
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        url = self.host + path + (f"?{urlencode(query)}" if query else "")
        response: urllib3.BaseHTTPResponse = self._client.rest_client.pool_manager.request(
            method,
            url,
            body=None if body is None else json.dumps(body),
            headers=headers,
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=read_seconds),
        )
        return response

    def _expire_token(self) -> bool:
        """Make the next request ask for a new token; False where tokens are not ours to renew."""
        expire = getattr(self._client.configuration.refresh_api_key_hook, "expire", None)
        if expire is None:
            return False
        expire()
        return True

    def _unreachable(self, error: Exception) -> ClusterUnreachable:
        return ClusterUnreachable(
            "the cluster's API server does not answer",
            asked=self.host,
            found=f"{type(error).__name__}: {error}"[:300],
            next_move="check that the cluster runs and that this machine may reach its endpoint (DNS endpoint: allow external traffic)",
        )

    def _typed(self, answer: ApiError, method: str, path: str, about: str) -> Exception:
        asked = about or f"{method} {path}"
        if answer.status in (404, 409, 410):
            return answer
        if answer.status in (401, 403):
            return AccessDenied(
                "the cluster does not let this caller do that",
                asked=asked,
                found=answer.message,
                next_move=(
                    "grant the missing verb by RBAC, or roles/container.developer to the caller"
                    if answer.from_kubernetes
                    else "allow external traffic on the DNS endpoint and grant container.clusters.connect to the caller"
                ),
            )
        if answer.status in (400, 422) or _permanent(answer):
            return ManifestRefused(
                "the cluster refuses what was sent", asked=asked, found=answer.message, next_move="correct the field named above"
            )
        return KubeError(
            f"the API server answers {answer.status}",
            asked=asked,
            found=answer.message,
            next_move="run again; if it stays, see the cluster's health",
        )


def conflict(ref: Ref, error: ApiError) -> ApplyConflict:
    """A 409 as a typed error that names the fields and who owns them."""
    causes = error.body.get("details", {}).get("causes", [])
    found = "; ".join(f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in causes) or error.message
    return ApplyConflict(
        f"{ref} is partly somebody else's", asked=str(ref), found=found, next_move="remove it or choose another name, then run again"
    )


def is_transient(error: Exception) -> bool:
    """Whether a connection error may go away by itself: a refused certificate does not."""
    return not isinstance(error, urllib3.exceptions.SSLError | urllib3.exceptions.LocationValueError)


def _retried(answer: ApiError) -> bool:
    return answer.status in _TRANSIENT and not _permanent(answer)


def _permanent(answer: ApiError) -> bool:
    return answer.status == 500 and any(text in answer.message for text in _PERMANENT_500)


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
