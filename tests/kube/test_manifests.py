"""Every manifest of every system, on a real API server with the published CRDs, and against the schemas of newer servers."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.kube.conftest import load_crds, need_crds
from tests.kube.schemas import compute_class_schema, load
from tests.kube.systems import SYSTEMS
from tuneline.kube.api import Api, Ref
from tuneline.kube.compare import differences
from tuneline.kube.errors import ManifestRefused, ReadBackMismatch
from tuneline.kube.objects import apply_, get
from tuneline.kube.render import Manifest

CORE = ("v1", "apps/v1", "networking.k8s.io/v1")
PUBLISHED = {
    "RayCluster": ("ray.io_rayclusters.v1.4.2.yaml", "ray.io_rayclusters.v1.7.0.yaml"),
    "RayJob": ("ray.io_rayjobs.v1.4.2.yaml", "ray.io_rayjobs.v1.7.0.yaml"),
    "Network": ("networking.gke.io_networks.yaml",),
    "GKENetworkParamSet": ("networking.gke.io_gkenetworkparamsets.yaml",),
    "ComputeDomain": ("resource.nvidia.com_computedomains.v25.8.1.yaml",),
}


def every() -> list[Manifest]:
    """What five runs, one of each system, apply to one cluster."""
    return [manifest for system in sorted(SYSTEMS) for manifest in SYSTEMS[system].manifests(f"tl{system}")]


def one(kind: str, system: str = "a4x") -> dict[str, Any]:
    body = next(manifest.body for manifest in SYSTEMS[system].manifests() if manifest.kind == kind)
    return copy.deepcopy(body)


@pytest.mark.parametrize("kuberay", ["1.4.2", "1.7.0"])
def test_every_manifest_is_applied_and_read_back_equal(api: Api, kuberay: str) -> None:
    load_crds(api, kuberay)
    applied = 0
    for manifest in every():
        body = copy.deepcopy(manifest.body)
        result = apply_(api, body)
        held = get(api, Ref.of(body))
        assert held is not None
        assert not result.adopted
        assert differences(body, held) == []
        applied += 1
    assert applied == len(every()) > 70


def test_applying_again_changes_nothing(api: Api) -> None:
    first = [_identity(apply_(api, manifest.body).body) for manifest in every()]
    again = [apply_(api, manifest.body) for manifest in every()]
    assert [_identity(applied.body) for applied in again] == first
    assert not any(applied.created or applied.adopted for applied in again)


def _identity(body: dict[str, Any]) -> tuple[str, int | None]:
    """Which object it is, and how often its spec has changed."""
    return body["metadata"]["uid"], body["metadata"].get("generation")


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("RayCluster", ("spec", "workerGroupSpecs", 0, "template", "spec", "nodeSelector"), {"cloud.google.com/gke-accelerator-count": 8}),
        ("RayCluster", ("spec", "workerGroupSpecs", 0, "replicas"), "four"),
        ("RayJob", ("spec", "submissionMode"), 3),
        ("ComputeDomain", ("spec", "channel"), {}),
        ("NetworkPolicy", ("spec", "ingress", 0, "form"), []),
    ],
)
def test_a_wrong_field_is_refused_by_the_server(api: Api, kind: str, path: tuple[str | int, ...], value: Any) -> None:
    body = one(kind)
    body["metadata"]["name"] = f"{body['metadata']['name']}-wrong"
    node: Any = body
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises(ManifestRefused) as caught:
        apply_(api, body)
    assert str(path[-1]) in caught.value.found or "gke-accelerator-count" in caught.value.found


@pytest.mark.parametrize(("kind", "system"), [("RayCluster", "standard"), ("ComputeClass", "autopilot")])
def test_an_unknown_field_is_refused_or_noticed(api: Api, kind: str, system: str) -> None:
    body = one(kind, system)
    body["metadata"]["name"] += "-newer"
    body["spec"]["fromTheFuture"] = True
    # What this server cannot check on apply it drops (RayCluster's schema has open parts), and reading back notices that.
    with pytest.raises((ReadBackMismatch, ManifestRefused)) as caught:
        apply_(api, body)
    assert ".spec.fromTheFuture" in caught.value.asked + caught.value.found


@pytest.mark.parametrize("kubernetes", ["1.32", "1.33", "1.34", "1.35", "1.36"])
def test_core_objects_are_valid_for_the_kubernetes_that_gke_offers(kubernetes: str) -> None:
    checked = set()
    for manifest in every():
        body, api_version = manifest.body, str(manifest.body["apiVersion"])
        if api_version in CORE or (api_version == "resource.k8s.io/v1" and kubernetes >= "1.34"):
            kubernetes_validate.validate(body, kubernetes, strict=True)
            checked.add(body["kind"])
        for template in _pod_templates(body):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template.get("metadata", {})}, "spec": template["spec"]}
            kubernetes_validate.validate(pod, kubernetes, strict=True)
            checked.add("Pod")
    core = {
        "Namespace",
        "ServiceAccount",
        "NetworkPolicy",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "DaemonSet",
        "ResourceQuota",
        "Pod",
    }
    assert checked == core | ({"ResourceClaimTemplate"} if kubernetes >= "1.34" else set())


def test_an_invalid_core_object_is_not_valid() -> None:
    body = one("NetworkPolicy")
    body["spec"]["ingress"][0]["form"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, "1.34", strict=True)


def test_custom_objects_are_valid_for_their_published_schemas() -> None:
    crds, checked = need_crds(), set()
    schemas: dict[str, jsonschema.Draft202012Validator] = {}
    for manifest in every():
        for file in PUBLISHED.get(manifest.kind, ()):
            if file not in schemas:
                schemas[file] = jsonschema.Draft202012Validator(
                    _closed(load(crds / file)[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
                )
            schemas[file].validate({"spec": manifest.body["spec"]})
            checked.add(file)
        if manifest.kind == "ComputeClass":
            jsonschema.validate(manifest.body, compute_class_schema(crds))
            checked.add("ComputeClass")
    assert checked == {file for files in PUBLISHED.values() for file in files} | {"ComputeClass"}


def _closed(node: Any) -> Any:
    """An OpenAPI schema as JSON schema in which unknown fields are faults."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {name: _closed(value) for name, value in node.items()}
    if made.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def _pod_templates(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates in an object."""
    found = []
    stack: list[Any] = [body.get("spec", {})]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            found += [
                value
                for key, value in node.items()
                if key in ("template", "submitterPodTemplate") and isinstance(value, dict) and "spec" in value
            ]
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return [template for template in found if "containers" in template["spec"]]
