"""Why a workload does not come up or went down: from statuses and events to one line of cause each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuneline.kube.api import Api
from tuneline.kube.errors import WorkloadFailed
from tuneline.kube.objects import RUN_LABEL, Object, list_

#: The order in which causes are told: what a person must act on comes before what may pass by itself.
_ORDER = (
    "stockout",
    "quota",
    "image",
    "out-of-memory",
    "crash",
    "volume",
    "claim",
    "refused",
    "lost",
    "unschedulable",
    "finalizer",
    "starting",
)
_STOCKOUT = re.compile(r"ZONE_RESOURCE_POOL_EXHAUSTED|GCE_STOCKOUT|out.of.resources|does not have enough resources", re.IGNORECASE)
_QUOTA = re.compile(r"QUOTA_EXCEEDED|quota exceeded|exceeded quota|insufficient.*quota", re.IGNORECASE)
_IMAGE_WAITS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_REFUSED = ("FailedCreate", "FailedToCreateHeadPod", "FailedToCreateWorkerPod", "InvalidRayClusterSpec", "InvalidRayClusterStatus")
_LOST = ("Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeLost", "Shutdown")


@dataclass(frozen=True, order=True)
class Cause:
    """One cause.

    Attributes:
        kind: stockout | quota | image | out-of-memory | crash | volume | claim | refused | lost | unschedulable | finalizer | starting.
        line: What is wrong with what, in one line.
        final: Whether waiting alone will not help.
    """

    kind: str
    line: str
    final: bool = False


def collect(api: Api, namespace: str, run_id: str) -> list[Cause]:
    """The causes of one run's workload in the cluster, the one to act on first."""
    mine = {RUN_LABEL: run_id}
    claims_api = api.preferred_version("resource.k8s.io")
    pods = list_(api, "v1", "Pod", namespace=namespace, labels=mine)
    clusters = list_(api, "ray.io/v1", "RayCluster", namespace=namespace, labels=mine)
    volumes = list_(api, "v1", "PersistentVolumeClaim", namespace=namespace, labels=mine)
    claims = list_(api, claims_api, "ResourceClaim", namespace=namespace) if claims_api else []
    names = {item["metadata"]["name"] for item in (*pods, *clusters, *volumes)}
    claims = [claim for claim in claims if _owners(claim) & names]
    names |= {claim["metadata"]["name"] for claim in claims}
    events = [event for event in list_(api, "v1", "Event", namespace=namespace) if event["involvedObject"].get("name") in names]
    return diagnose(pods=pods, events=events, volumes=volumes, claims=claims, others=clusters)


def diagnose(
    *,
    pods: Iterable[Object] = (),
    events: Sequence[Object] = (),
    volumes: Iterable[Object] = (),
    claims: Iterable[Object] = (),
    others: Iterable[Object] = (),
) -> list[Cause]:
    """The causes that these objects tell, each once, the one to act on first; [] if nothing is wrong."""
    pods, volumes, claims, others = list(pods), list(volumes), list(claims), list(others)
    found: dict[Cause, None] = {}
    for pod in pods:
        found |= dict.fromkeys(_pod(pod))
    for event in events:
        found |= dict.fromkeys(_event(event))
    for volume in volumes:
        found |= dict.fromkeys(_volume(volume, events))
    for claim in claims:
        found |= dict.fromkeys(_claim(claim))
    for item in (*pods, *volumes, *claims, *others):
        found |= dict.fromkeys(_finalizer(item))
    return sorted(found, key=lambda cause: (_ORDER.index(cause.kind), not cause.final, cause.line))


def failure(causes: Sequence[Cause], *, asked: str) -> WorkloadFailed:
    """The causes as one error: the first is its message."""
    if not causes:
        return WorkloadFailed("the workload does not come up, and no event says why", asked=asked, next_move="`kubectl describe` its pods")
    return WorkloadFailed(
        causes[0].line, asked=asked, found="; ".join(cause.line for cause in causes[1:4]), next_move=_MOVES[causes[0].kind]
    )


_MOVES = {
    "stockout": "try another zone or gpu_provisioning, or ask for fewer gpu_nodes",
    "quota": "ask for more quota in this region, or for fewer gpu_nodes",
    "image": "correct gpu_image, or give the nodes' service account access to the registry",
    "out-of-memory": "make the batch or the sequences smaller, or take a larger machine",
    "crash": "read the container's log",
    "volume": "check bucket or Lustre instance, and the service account's access to it",
    "claim": "check that the nodes offer the devices: GKE 1.34 or newer, DRA driver running",
    "refused": "correct what the message names",
    "lost": "run again: training goes on from its newest checkpoint; Spot nodes can go at any time",
    "unschedulable": "wait for the autoscaler, or check that the node pool has this machine and room",
    "finalizer": "wait for its controller; if that is gone, take the finalizer away",
    "starting": "wait",
}


def _pod(pod: Object) -> Iterator[Cause]:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if status.get("reason") in _LOST:
        yield Cause("lost", f"{name} lost its node ({status['reason']}): {_one_line(status.get('message', ''))}", final=True)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and not pod["metadata"].get("deletionTimestamp"):
            yield _unscheduled(name, condition.get("message", ""))
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            yield Cause(
                "lost", f"{name} is being ended ({condition.get('reason', '')}): {_one_line(condition.get('message', ''))}", final=True
            )
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        yield from _container(pod, name, container)


def _unscheduled(pod: str, message: str) -> Cause:
    """Which resource, volume, claim or label keeps a pod from every node."""
    if "persistentvolumeclaim" in message.lower():
        return Cause("volume", f"{pod} waits for a volume claim: {_one_line(message)}")
    if "resourceclaim" in message.lower() or "cannot allocate all claims" in message:
        return Cause("claim", f"{pod} waits for a device claim: {_one_line(message)}")
    lacking = sorted(set(re.findall(r"Insufficient ([\w/-]+(?:\.[\w/-]+)*)", message)))
    if lacking:
        return Cause("unschedulable", f"{pod} fits on no node: not enough {', '.join(lacking)} ({_one_line(message)})")
    taint = re.search(r"untolerated taint \{([^}]*)\}", message)
    if taint:
        return Cause("unschedulable", f"{pod} fits on no node: it does not tolerate the taint {taint[1].strip()} ({_one_line(message)})")
    if "node affinity" in message or "node selector" in message:
        return Cause("unschedulable", f"{pod} fits on no node: none has the labels that it selects ({_one_line(message)})")
    return Cause("unschedulable", f"{pod} fits on no node: {_one_line(message) or 'the scheduler does not say why'}")


def _container(pod: Object, name: str, container: Object) -> Iterator[Cause]:
    where = f"{name}/{container['name']}"
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), _one_line(waiting.get("message", ""))
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    if reason in _IMAGE_WAITS:
        gone = any(text in message for text in ("not found", "manifest unknown", "InvalidImageName")) or reason == "InvalidImageName"
        yield Cause("image", f"{where} cannot pull {container.get('image', '')}: {reason}: {message}", final=gone)
    elif reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        yield Cause("crash", f"{where} cannot start: {reason}: {message}", final=True)
    elif reason and reason not in ("ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
        yield Cause("starting", f"{where}: {reason}: {message}")
    if ended.get("reason") == "OOMKilled":
        yield Cause("out-of-memory", f"{where} was ended for its memory (limit {_memory_limit(pod, container['name'])})", final=True)
    elif ended and ended.get("exitCode", 0) != 0:
        restarts = container.get("restartCount", 0)
        detail = _one_line(ended.get("message", ""))
        text = f"{where} ended with exit code {ended['exitCode']} ({ended.get('reason', 'Error')}), {restarts} restarts"
        yield Cause("crash", f"{text}: {detail}" if detail else text, final=reason == "CrashLoopBackOff")


def _event(event: Object) -> Iterator[Cause]:
    if event.get("type") != "Warning":
        return
    name, reason, message = event["involvedObject"].get("name", ""), event.get("reason", ""), _one_line(event.get("message", ""))
    if _STOCKOUT.search(message):
        yield Cause("stockout", f"the zone has no such machine left, for {name}: {message}", final=True)
    elif _QUOTA.search(message):
        yield Cause("quota", f"quota is used up, for {name}: {message}", final=True)
    elif reason == "FailedScaleUp":
        yield Cause("unschedulable", f"the autoscaler cannot make a node for {name}: {message}")
    elif reason == "NotTriggerScaleUp":
        yield Cause("unschedulable", f"no node pool can hold {name}: {message}")
    elif reason in ("FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedBinding"):
        yield Cause("volume", f"{name} cannot mount: {message}")
    elif reason in _REFUSED:
        yield Cause("refused", f"the cluster refuses a part of {name}: {message}", final=True)
    elif reason in _LOST:
        yield Cause("lost", f"{name} lost its node ({reason}): {message}", final=True)


def _volume(volume: Object, events: Sequence[Object]) -> Iterator[Cause]:
    phase = volume.get("status", {}).get("phase", "Pending")
    if phase == "Bound":
        return
    name = volume["metadata"]["name"]
    told = [_one_line(event.get("message", "")) for event in events if event["involvedObject"].get("name") == name]
    wanted = volume.get("spec", {}).get("volumeName", "")
    yield Cause(
        "volume",
        f"volume claim {name} is {phase}, not bound to {wanted or 'any volume'}{': ' + told[-1] if told else ''}",
        final=phase == "Lost",
    )


def _claim(claim: Object) -> Iterator[Cause]:
    if claim.get("status", {}).get("allocation"):
        return
    requests = claim.get("spec", {}).get("devices", {}).get("requests", [])
    classes = sorted({(request.get("exactly") or request).get("deviceClassName", "?") for request in requests})
    yield Cause("claim", f"device claim {claim['metadata']['name']} is pending: no node gives {', '.join(classes) or 'the device'}")


def _finalizer(item: Object) -> Iterator[Cause]:
    metadata = item["metadata"]
    if metadata.get("deletionTimestamp") and metadata.get("finalizers"):
        since, names = metadata["deletionTimestamp"], ", ".join(metadata["finalizers"])
        yield Cause("finalizer", f"{item.get('kind', 'object')} {metadata['name']} is being deleted since {since} and held by {names}")


def _memory_limit(pod: Object, container: str) -> str:
    for found in (*pod.get("spec", {}).get("initContainers", []), *pod.get("spec", {}).get("containers", [])):
        if found["name"] == container:
            return str(found.get("resources", {}).get("limits", {}).get("memory", "none"))
    return "unknown"


def _owners(item: Object) -> set[str]:
    return {owner["name"] for owner in item["metadata"].get("ownerReferences", [])}


def _one_line(message: Any) -> str:
    return " ".join(str(message).split())[:300]
