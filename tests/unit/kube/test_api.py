"""Retries that end, typed errors, discovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking, failure
from tuneline.kube.api import RETRY_SECONDS, ApiError, Ref
from tuneline.kube.errors import AccessDenied, ClusterUnreachable, KindMissing, KubeError, ManifestRefused

Serve = Callable[[Handler], Server]


def test_a_storm_of_503_passes(serve: Serve, clock: Ticking) -> None:
    answers = [failure(503, "apiserver not ready")] * 6 + [failure(429, "slow down"), Answer(502, "<html>"), Answer(body={"ok": True})]
    server = serve(lambda request: answers.pop(0))
    assert server.api(clock).call("GET", "/api/v1/pods") == {"ok": True}
    assert clock.slept == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_storm_that_does_not_end_is_told_after_five_minutes(serve: Serve, clock: Ticking) -> None:
    server = serve(lambda request: failure(503, "apiserver not ready"))
    with pytest.raises(KubeError) as caught:
        server.api(clock).call("GET", "/api/v1/pods")
    assert "503" in caught.value.message
    assert caught.value.found == "apiserver not ready"
    assert sum(clock.slept) == pytest.approx(RETRY_SECONDS, abs=1)


def test_a_server_that_is_gone_is_told_with_its_address(serve: Serve, clock: Ticking) -> None:
    server = serve(lambda request: Answer())
    api = server.api(clock)
    server.close()
    with pytest.raises(ClusterUnreachable) as caught:
        api.call("GET", "/api/v1/pods")
    assert caught.value.asked == server.url
    assert sum(clock.slept) == pytest.approx(RETRY_SECONDS, abs=1)


def test_a_connection_that_breaks_is_tried_again(serve: Serve, clock: Ticking) -> None:
    answers = [Answer(body=["{"], cut=True), Answer(body={"ok": 1})]
    server = serve(lambda request: answers.pop(0))
    assert server.api(clock).call("GET", "/x") == {"ok": 1}


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (failure(403, "pods is forbidden: User x cannot list"), AccessDenied, "RBAC"),
        (Answer(403, "<html>blocked</html>"), AccessDenied, "DNS endpoint"),
        (failure(401, "Unauthorized"), AccessDenied, "container.developer"),
        (failure(422, "spec.replicas: Invalid value"), ManifestRefused, "spec.replicas"),
        (failure(400, "unknown field"), ManifestRefused, "unknown field"),
        (failure(500, "failed to create typed patch object: .spec.x: field not declared in schema"), ManifestRefused, ".spec.x"),
        (failure(418, "teapot"), KubeError, "teapot"),
    ],
)
def test_answers_become_typed_errors_at_once(serve: Serve, clock: Ticking, answer: Answer, error: type[KubeError], text: str) -> None:
    server = serve(lambda request: answer)
    with pytest.raises(error) as caught:
        server.api(clock).call("GET", "/x", about="look at x")
    assert text in str(caught.value)
    assert caught.value.asked == "look at x"
    assert clock.slept == []


@pytest.mark.parametrize("status", [404, 409, 410])
def test_expected_answers_stay_inside(serve: Serve, clock: Ticking, status: int) -> None:
    server = serve(lambda request: failure(status, "no"))
    with pytest.raises(ApiError) as caught:
        server.api(clock).call("GET", "/x")
    assert caught.value.status == status


def test_paths_come_from_discovery(serve: Serve, clock: Ticking) -> None:
    api = serve(lambda request: failure(404)).api(clock)
    assert api.path(Ref("v1", "Pod", "p", "ns")) == "/api/v1/namespaces/ns/pods/p"
    assert api.path(Ref("v1", "Namespace", "ns")) == "/api/v1/namespaces/ns"
    assert api.path(Ref("ray.io/v1", "RayCluster", "a/../b", "ns")) == "/apis/ray.io/v1/namespaces/ns/rayclusters/a%2F..%2Fb"
    with pytest.raises(KindMissing) as caught:
        api.collection("v1", "Poddy")
    assert caught.value.choices == ("ConfigMap", "Event", "Namespace", "Pod")
    with pytest.raises(KindMissing, match=r"RayService of ray.io/v2"):
        api.collection("ray.io/v2", "RayService")


def test_a_kind_that_comes_later_is_found(serve: Serve, clock: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.kube import support

    api = serve(lambda request: failure(404)).api(clock)
    with pytest.raises(KindMissing):
        api.collection("ray.io/v1", "RayJob")
    monkeypatch.setitem(support.DISCOVERY, "/apis/ray.io/v1", [("RayJob", "rayjobs", True)])
    assert api.collection("ray.io/v1", "RayJob", "ns") == "/apis/ray.io/v1/namespaces/ns/rayjobs"


def test_the_preferred_version_of_a_group(serve: Serve, clock: Ticking) -> None:
    groups = [{"name": "resource.k8s.io", "preferredVersion": {"groupVersion": "resource.k8s.io/v1beta1"}}]

    def handle(request: Request) -> Answer:
        assert request.path == "/apis"
        return Answer(body={"groups": groups})

    api = serve(handle).api(clock)
    assert api.preferred_version("resource.k8s.io") == "resource.k8s.io/v1beta1"
    assert api.preferred_version("ray.io") == ""
