"""Objects on a real API server: owners, conflicts, waiting, deleting, what a run left, causes. The test plays operator and kubelet."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from tests.kube.systems import SYSTEMS
from tuneline.core.clock import SYSTEM, Deadline
from tuneline.kube.api import MERGE, Api, Ref
from tuneline.kube.diagnose import collect
from tuneline.kube.discover import find_operator, resource_api
from tuneline.kube.errors import ApplyConflict, DeleteStuck, KindMissing, WaitTimeout
from tuneline.kube.objects import apply_, delete_, get, list_, refs_of_run
from tuneline.kube.watch import wait_for_

Object = dict[str, Any]


def settings(namespace: str, name: str = "settings", run: str = "tl1", **data: str) -> Object:
    labels = {"managed-by": "tuneline", "tuneline-run": run}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": data}


def ray_cluster(namespace: str) -> Object:
    body = copy.deepcopy(next(manifest.body for manifest in SYSTEMS["cpu"].manifests("tl1") if manifest.kind == "RayCluster"))
    body["metadata"]["namespace"] = namespace
    return body


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(SYSTEM, seconds)


def patch(api: Api, ref: Ref, body: Object, part: str = "") -> None:
    api.call("PATCH", api.path(ref) + part, body=body, content_type=MERGE)


def test_fields_that_somebody_took_over_are_taken_back(api: Api, namespace: str) -> None:
    body = settings(namespace, a="1", b="2")
    assert apply_(api, body).created
    query = {"fieldManager": "kubectl", "force": "true"}
    theirs = {**settings(namespace, a="theirs"), "metadata": {"name": "settings", "namespace": namespace}}
    api.call("PATCH", api.path(Ref.of(body)), query=query, body=theirs, content_type="application/apply-patch+yaml")
    assert apply_(api, body).body["data"] == {"a": "1", "b": "2"}
    assert apply_(api, settings(namespace, a="1")).body["data"] == {"a": "1"}, "what we no longer say goes"


def test_an_object_of_somebody_else_is_adopted_or_left_alone(api: Api, namespace: str) -> None:
    theirs = settings(namespace, a="1", more="x")
    del theirs["metadata"]["labels"]
    api.call("POST", api.collection("v1", "ConfigMap", namespace), body=theirs)
    assert apply_(api, settings(namespace, a="1")).adopted
    with pytest.raises(ApplyConflict, match="not ours"):
        apply_(api, settings(namespace, a="2"))
    assert namespace not in {ref.namespace for ref in refs_of_run(api, "tl1", [("v1", "ConfigMap")])}, "adopted is not owned"


def test_a_run_finds_what_is_its_own_and_deletes_it(api: Api, namespace: str) -> None:
    for name, run in (("one", "tl1"), ("two", "tl1"), ("other", "tl2")):
        apply_(api, settings(namespace, name, run, a="1"))
    refs = [
        ref
        for ref in refs_of_run(api, "tl1", [("v1", "ConfigMap"), ("v1", "Secret"), ("no.such/v1", "Kind")])
        if ref.namespace == namespace
    ]
    assert sorted(ref.name for ref in refs) == ["one", "two"]
    assert delete_(api, refs, soon()) == []
    assert [item["metadata"]["name"] for item in list_(api, "v1", "ConfigMap", namespace=namespace)] == ["other"]


def test_waiting_sees_what_an_operator_does(api: Api, namespace: str) -> None:
    ref = Ref.of(apply_(api, ray_cluster(namespace)).body)

    def operator() -> None:
        for state in ("suspended", "ready"):
            patch(api, ref, {"status": {"state": state, "readyWorkerReplicas": 2}}, "/status")

    thread = threading.Timer(0.3, operator)
    thread.start()
    found = wait_for_(api, ref, lambda body: (body or {}).get("status", {}).get("state") == "ready", soon(), about="Ray cluster is ready")
    thread.join()
    assert found is not None
    assert found["status"]["readyWorkerReplicas"] == 2
    with pytest.raises(WaitTimeout) as caught:
        wait_for_(api, ref, lambda body: body is None, soon(1), about="Ray cluster is gone")
    assert "state ready" in caught.value.found


def test_a_finalizer_holds_and_is_taken_away_after_the_grace(api: Api, namespace: str) -> None:
    body = ray_cluster(namespace)
    ref = Ref.of(apply_(api, body).body)
    patch(api, ref, {"metadata": {"finalizers": ["ray.io/gcs-ft-redis-cleanup-finalizer"]}})
    with pytest.raises(DeleteStuck) as caught:
        delete_(api, [ref], soon(0.5))
    assert "ray.io/gcs-ft-redis-cleanup-finalizer" in caught.value.found
    assert [cause.kind for cause in collect(api, namespace, "tl1")] == ["finalizer"]
    (line,) = delete_(api, [ref], soon(), finalizer_grace=0.1)
    assert line.startswith(f"RayCluster {namespace}/tl1: took away ray.io/")
    assert get(api, ref) is None


def test_causes_of_a_real_pod(api: Api, namespace: str) -> None:
    labels = {"managed-by": "tuneline", "tuneline-run": "tl1", "ray.io/cluster": "tl1"}
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tl1-worker-a", "namespace": namespace, "labels": labels}}
    pod["spec"] = {"containers": [{"name": "ray-worker", "image": "verlai/verl:nope"}]}
    ref = Ref.of(apply_(api, pod).body)
    assert collect(api, namespace, "tl1") == []
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    patch(api, ref, {"status": {"conditions": [condition]}}, "/status")
    involved = {"kind": "Pod", "name": "tl1-worker-a", "namespace": namespace}
    event = {"metadata": {"name": "e1", "namespace": namespace}, "involvedObject": involved, "type": "Warning", "reason": "FailedScaleUp"}
    api.call("POST", api.collection("v1", "Event", namespace), body={**event, "message": "Node scale up failed: GCE out of resources."})
    assert [cause.kind for cause in collect(api, namespace, "tl1")] == ["stockout", "unschedulable"]
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    status = {
        "name": "ray-worker",
        "image": "verlai/verl:nope",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    patch(api, ref, {"status": {"conditions": [], "containerStatuses": [status]}}, "/status")
    assert [cause.kind for cause in collect(api, namespace, "tl1")] == ["stockout", "image"]


def test_facts_of_this_server(api: Api) -> None:
    assert resource_api(api) == "resource.k8s.io/v1"
    assert find_operator(api).labels == {"k8s-app": "konnectivity-agent"}, "no operator's pod here"
    with pytest.raises(KindMissing):
        apply_(api, {"apiVersion": "ray.io/v2", "kind": "RayCluster", "metadata": {"name": "x", "labels": {}}})
