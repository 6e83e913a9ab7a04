"""Where the operator is, by its pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kube.support import Answer, Handler, Server, Ticking
from tuneline.kube.discover import find_operator, resource_api
from tuneline.kube.facts import Operator

Serve = Callable[[Handler], Server]


def pod(name: str, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


HELM = pod(
    "kuberay-operator-7c9",
    "kuberay",
    {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/instance": "r", "pod-template-hash": "7c9"},
)
ADDON = pod("kuberay-operator-abc", "gke-system", {"k8s-app": "kuberay-operator", "pod-template-hash": "abc"})


@pytest.mark.parametrize(
    ("pods", "operator"),
    [
        ([pod("other", "a", {}), HELM], Operator("kuberay", {"app.kubernetes.io/name": "kuberay-operator"})),
        ([ADDON], Operator("gke-system", {"k8s-app": "kuberay-operator"})),
        ([pod("other", "a", {})], Operator("kube-system", {"k8s-app": "konnectivity-agent"})),
    ],
)
def test_the_operator_is_found(serve: Serve, clock: Ticking, pods: list[dict[str, Any]], operator: Operator) -> None:
    assert find_operator(serve(lambda request: Answer(body={"items": pods, "metadata": {}})).api(clock)) == operator


def test_the_version_of_device_claims(serve: Serve, clock: Ticking) -> None:
    groups = {"groups": [{"name": "resource.k8s.io", "preferredVersion": {"groupVersion": "resource.k8s.io/v1"}}]}
    assert resource_api(serve(lambda request: Answer(body=groups)).api(clock)) == "resource.k8s.io/v1"
