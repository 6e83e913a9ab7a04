"""From what a cluster says to one line of cause; messages as schedulers, kubelets and GKE's autoscaler write them."""

from __future__ import annotations

from typing import Any

import pytest

from tuneline.kube.diagnose import Cause, diagnose, failure


def pod(name: str = "rc-worker-1", **status: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {"memory": "2715Gi"}}}
    spec = {"containers": [{"name": "ray-worker", **limits}], "initContainers": [{"name": "gib", "resources": {}}]}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}


def unscheduled(message: str) -> dict[str, Any]:
    return pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}])


def container(name: str = "ray-worker", **state: Any) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": name, "image": "docker.io/verlai/verl:nope", "restartCount": 3, **state}])


def event(reason: str, message: str, name: str = "rc-worker-1", kind: str = "Warning") -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "involvedObject": {"name": name}}


def only(**given: Any) -> Cause:
    causes = diagnose(**given)
    assert len(causes) == 1, causes
    return causes[0]


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (
            "0/7 nodes are available: 2 Insufficient nvidia.com/gpu, 5 Insufficient memory. preemption: 0/7 nodes are available.",
            "unschedulable",
            "not enough memory, nvidia.com/gpu",
        ),
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: present}.",
            "unschedulable",
            "the taint nvidia.com/gpu: present",
        ),
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", "unschedulable", "none has the labels"),
        ('0/3 nodes are available: persistentvolumeclaim "tl1-data" not found.', "volume", "waits for a volume claim"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "volume", "unbound immediate"),
        ("0/2 nodes are available: 2 cannot allocate all claims.", "claim", "waits for a device claim"),
        ("waiting for user to (re)create resourceclaim tl1-rdma", "claim", "tl1-rdma"),
        ("", "unschedulable", "does not say why"),
    ],
)
def test_unschedulable_says_which_resource(message: str, kind: str, text: str) -> None:
    cause = only(pods=[unscheduled(message)])
    assert cause.kind == kind
    assert text in cause.line
    assert cause.line.startswith("rc-worker-1 ")
    assert not cause.final


def test_a_pod_that_is_being_deleted_is_not_unschedulable() -> None:
    ending = unscheduled("0/1 nodes are available: 1 Insufficient cpu.")
    ending["metadata"]["deletionTimestamp"] = "2026-11-30T20:00:00Z"
    assert diagnose(pods=[ending]) == []


@pytest.mark.parametrize(
    ("reason", "message", "final"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "docker.io/verlai/verl:nope"', False),
        ("ErrImagePull", "rpc error: code = NotFound desc = docker.io/verlai/verl:nope: not found", True),
        ("InvalidImageName", "couldn't parse image name", True),
    ],
)
def test_image_pull_says_which_image(reason: str, message: str, final: bool) -> None:
    cause = only(pods=[container(state={"waiting": {"reason": reason, "message": message}})])
    assert cause.kind == "image"
    assert cause.line.startswith(f"rc-worker-1/ray-worker cannot pull docker.io/verlai/verl:nope: {reason}")
    assert cause.final is final


@pytest.mark.parametrize("where", ["state", "lastState"])
def test_oom_says_the_limit(where: str) -> None:
    cause = only(pods=[container(**{where: {"terminated": {"reason": "OOMKilled", "exitCode": 137}}})])
    assert cause == Cause("out-of-memory", "rc-worker-1/ray-worker was ended for its memory (limit 2715Gi)", final=True)


def test_a_crash_says_exit_code_and_message() -> None:
    ended = {"reason": "Error", "exitCode": 1, "message": "source: set_nccl_env.sh:\n No such file"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    cause = only(pods=[container(state=waiting, lastState={"terminated": ended})])
    assert cause.line == "rc-worker-1/ray-worker ended with exit code 1 (Error), 3 restarts: source: set_nccl_env.sh: No such file"
    assert cause.final
    assert (
        only(pods=[container(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}})]).kind
        == "crash"
    )


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        (
            "FailedScaleUp",
            "Node scale up in zones us-central1-b associated with this pod failed: GCE out of resources. Pod is at risk.",
            "stockout",
        ),
        ("FailedScaleUp", "scale up failed: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "stockout"),
        ("FailedScaleUp", "Node scale up failed: GCE quota exceeded. Pod is at risk of not being scheduled.", "quota"),
        ("FailedCreate", 'pods "x" is forbidden: exceeded quota: gpu, requested: pods=1', "quota"),
        ("FailedScaleUp", "Node scale up failed: Internal error. Pod is at risk.", "unschedulable"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 3 node(s) didn't match Pod's node affinity/selector", "unschedulable"),
        ("FailedMount", "MountVolume.SetUp failed: mount.lustre: mount 10.1.2.3@tcp:/lustrefs failed: Is the MGS running?", "volume"),
        ("FailedToCreateWorkerPod", 'admission webhook "warden" denied the request: hostPath is not allowed', "refused"),
        ("NodeShutdown", "Pod was terminated in response to imminent node shutdown.", "lost"),
    ],
)
def test_events_of_gke(reason: str, message: str, kind: str) -> None:
    cause = only(events=[event(reason, message)])
    assert cause.kind == kind
    assert "rc-worker-1" in cause.line


def test_events_that_only_inform_are_no_causes() -> None:
    quiet = [
        event("TriggeredScaleUp", "pod triggered scale-up: quota exceeded?", kind="Normal"),
        event("Unhealthy", "Readiness probe failed"),
    ]
    assert diagnose(events=quiet) == []


def test_a_volume_claim_that_is_not_bound_and_why() -> None:
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "tl1-data"},
        "spec": {"volumeName": "tl1-data"},
        "status": {"phase": "Pending"},
    }
    told = [event("FailedBinding", 'volume "tl1-data" already bound to a different claim.', name="tl1-data", kind="Normal")]
    cause = only(volumes=[claim], events=told)
    assert cause.line == 'volume claim tl1-data is Pending, not bound to tl1-data: volume "tl1-data" already bound to a different claim.'
    assert diagnose(volumes=[{**claim, "status": {"phase": "Bound"}}]) == []


@pytest.mark.parametrize("request_", [{"exactly": {"deviceClassName": "mrdma.google.com"}}, {"deviceClassName": "mrdma.google.com"}])
def test_a_device_claim_that_is_pending(request_: dict[str, Any]) -> None:
    claim = {"metadata": {"name": "rc-worker-1-rdma"}, "spec": {"devices": {"requests": [request_]}}, "status": {}}
    assert only(claims=[claim]).line == "device claim rc-worker-1-rdma is pending: no node gives mrdma.google.com"
    assert diagnose(claims=[{**claim, "status": {"allocation": {"devices": {}}}}]) == []


def test_a_finalizer_that_is_stuck() -> None:
    metadata = {"name": "rc", "deletionTimestamp": "2026-11-30T20:00:00Z", "finalizers": ["ray.io/x"]}
    assert only(others=[{"kind": "RayCluster", "metadata": metadata}]).line == (
        "RayCluster rc is being deleted since 2026-11-30T20:00:00Z and held by ray.io/x"
    )


def test_a_lost_node() -> None:
    assert only(pods=[pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")]).kind == "lost"
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint manager: deleting"}
    assert only(pods=[pod(conditions=[target])]).kind == "lost"


def test_a_healthy_workload_has_no_cause() -> None:
    running = pod(
        phase="Running",
        conditions=[{"type": "PodScheduled", "status": "True"}],
        containerStatuses=[{"name": "ray-worker", "state": {"running": {}}}],
    )
    starting = pod(phase="Pending", containerStatuses=[{"name": "ray-worker", "state": {"waiting": {"reason": "ContainerCreating"}}}])
    done = pod(
        phase="Succeeded", containerStatuses=[{"name": "ray-worker", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
    )
    assert diagnose(pods=[running, starting, done]) == []


def test_what_a_person_must_act_on_comes_first_and_once() -> None:
    stuck = unscheduled("0/7 nodes are available: 7 Insufficient nvidia.com/gpu.")
    stockout = event("FailedScaleUp", "GCE out of resources")
    causes = diagnose(pods=[stuck, stuck], events=[stockout, stockout])
    assert [cause.kind for cause in causes] == ["stockout", "unschedulable"]
    error = failure(causes, asked="2 workers")
    assert error.code == "TL910"
    assert error.message == "the zone has no such machine left, for rc-worker-1: GCE out of resources"
    assert "nvidia.com/gpu" in error.found
    assert "another zone" in error.next_move
    assert "no event says why" in failure([], asked="2 workers").message
