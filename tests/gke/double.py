"""The parts of a GKE cluster that no test has: operator, autoscaler, scheduler, kubelets and garbage collector, on a real API server.

It acts whenever virtual time passes, on what it finds in the API server and in the fakes of Google.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.google import GoogleFakes
from tests.fakes.world import leaf
from tuneline.core.clock import utc
from tuneline.kube.api import MERGE, Api, ApiError, Ref
from tuneline.kube.objects import Object, get, list_

#: Virtual seconds between two looks.
LOOK = 10.0
RUN = "tuneline-run"
#: Kinds that a test may leave in the server, in an order in which they go.
KINDS = (
    ("ray.io/v1", "RayJob"),
    ("ray.io/v1", "RayCluster"),
    ("v1", "Pod"),
    ("resource.nvidia.com/v1beta1", "ComputeDomain"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    ("cloud.google.com/v1", "ComputeClass"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "PersistentVolume"),
    ("networking.gke.io/v1", "Network"),
    ("networking.gke.io/v1", "GKENetworkParamSet"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("v1", "ConfigMap"),
    ("v1", "ResourceQuota"),
    ("v1", "Event"),
    ("v1", "Node"),
)
GPU = "nvidia.com/gpu"


@dataclass
class Trouble:
    """What goes wrong with workers.

    Attributes:
        image: They cannot pull their image.
        unschedulable: Why the scheduler finds no node for them, '' where it does.
        events: (reason, message) of warnings about the first worker.
        job: Message of every job that fails, '' where jobs succeed.
    """

    image: bool = False
    unschedulable: str = ""
    events: list[tuple[str, str]] = field(default_factory=list)
    job: str = ""


class Double:
    """Plays a cluster.

    Args:
        api: As an administrator.
        fakes: Whose machines become nodes.
    """

    def __init__(self, api: Api, fakes: GoogleFakes) -> None:
        self.api, self.fakes, self.trouble = api, fakes, Trouble()
        self._last = float("-inf")
        self._acting = False
        self._cluster = ""
        self.auto_pools: dict[str, str] = {}

    @property
    def acting(self) -> bool:
        """Whether the calls that are being made now are the double's own."""
        return self._acting

    def __call__(self) -> None:
        """Act, if enough virtual time has passed."""
        now = self.fakes.clock.now()
        if self._acting or now - self._last < LOOK:
            return
        self._acting, self._last = True, now
        try:
            self.step()
        finally:
            self._acting = False

    def step(self) -> None:
        clusters = [entry for _, entry in self.fakes.world.of_kind("locations/clusters")]
        if not clusters:
            return
        running = clusters[0].body
        if running["id"] != self._cluster:
            self._cluster = running["id"]
            self._empty()
        if running["status"] not in ("RUNNING", "RECONCILING"):
            return
        self._control_plane(running)
        self._nodes(running["name"])
        for claim in list_(self.api, "v1", "PersistentVolumeClaim"):
            self._status(Ref.of(claim), {"phase": "Bound"})
        for domain in list_(self.api, "resource.nvidia.com/v1beta1", "ComputeDomain"):
            self._domain(domain)
        rays = list_(self.api, "ray.io/v1", "RayCluster")
        for ray in rays:
            self._ray(running, ray)
        for job in list_(self.api, "ray.io/v1", "RayJob"):
            self._job(job)
        for pool in [pool for name, pool in self.auto_pools.items() if name not in [ray["metadata"]["name"] for ray in rays]]:
            if self.fakes.world.get(pool):
                self.fakes.container.scale(running["name"], leaf(pool), 0)
        for api_version, kind in KINDS:
            if kind not in ("Event", "Node", "ConfigMap"):
                for item in list_(self.api, api_version, kind):
                    self._collect(item)

    def _empty(self) -> None:
        """A new cluster is empty: what an earlier one had in this server goes."""
        for api_version, kind in KINDS:
            for item in list_(self.api, api_version, kind):
                if kind != "ConfigMap" or item["metadata"]["name"] == "ingress-uid":
                    self._remove(item)

    def _control_plane(self, cluster: Object) -> None:
        self._ensure(_object("v1", "Namespace", "kube-system", ""))
        uid = cluster["id"][:8] * 2
        self._ensure({**_object("v1", "ConfigMap", "ingress-uid", "kube-system"), "data": {"uid": uid}})
        if cluster.get("addonsConfig", {}).get("rayOperatorConfig", {}).get("enabled"):
            self._ensure(_object("v1", "Namespace", "ray-operator", ""))
            pod = _object("v1", "Pod", "kuberay-operator-0", "ray-operator", {"app.kubernetes.io/name": "kuberay-operator"})
            self._ensure({**pod, "spec": {"containers": [{"name": "operator", "image": "kuberay/operator"}]}})

    def _nodes(self, cluster: str) -> None:
        """The machines of the fakes are the nodes of the cluster."""
        wanted: dict[str, dict[str, str]] = {}
        for path, pool in self.fakes.world.of_kind("locations/nodePools"):
            for name in self.fakes.container.nodes(cluster, leaf(path)):
                wanted[name] = {"cloud.google.com/gke-nodepool": leaf(path), **pool.body["config"].get("labels", {})}
        there = {node["metadata"]["name"]: node for node in list_(self.api, "v1", "Node")}
        for name in wanted.keys() - there.keys():
            self._ensure(_object("v1", "Node", name, "", wanted[name]))
        for name in there.keys() - wanted.keys():
            self._remove(there[name])

    def _ray(self, cluster: Object, ray: Object) -> None:
        """KubeRay's operator, the autoscaler and the kubelets for one Ray cluster."""
        metadata, spec = ray["metadata"], ray["spec"]
        namespace, name = metadata["namespace"], metadata["name"]
        pods = {pod["metadata"]["name"]: pod for pod in list_(self.api, "v1", "Pod", namespace=namespace, labels={"ray.io/cluster": name})}
        if metadata.get("deletionTimestamp"):
            for pod in pods.values():
                self._remove(pod)
            return
        group = spec["workerGroupSpecs"][0]
        count = group["replicas"]
        wanted = {f"{name}-head": ("head", spec["headGroupSpec"]["template"])}
        wanted |= {f"{name}-workers-worker-{number}": ("worker", group["template"]) for number in range(count)}
        for pod_name in wanted.keys() - pods.keys():
            self._pod(ray, pod_name, *wanted[pod_name])
        gpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))
        nodes = self._worker_nodes(cluster, ray, group["template"], count) if gpus else ["cpu"] * count
        ready = 0
        for index in range(count):
            ready += self._worker(namespace, f"{name}-workers-worker-{index}", index < len(nodes))
        self._status(Ref("v1", "Pod", f"{name}-head", namespace), _running())
        state = {"state": "ready"} if ready == count else {"reason": f"{ready} of {count} workers"}
        status = {
            **state,
            "desiredWorkerReplicas": count,
            "readyWorkerReplicas": ready,
            "availableWorkerReplicas": ready,
            "desiredGPU": str(gpus * count),
            "head": {"serviceName": f"{name}-head-svc"},
        }
        self._status(Ref.of(ray), status)

    def _worker_nodes(self, cluster: Object, ray: Object, template: Object, count: int) -> list[str]:
        """GPU nodes for the workers; the autoscaler makes them."""
        selector, name = template["spec"]["nodeSelector"], ray["metadata"]["name"]
        pool = selector.get("cloud.google.com/gke-nodepool", "")
        if not pool and name not in self.auto_pools and not self.trouble.unschedulable:
            self.auto_pools[name] = self._compute_class(cluster, selector["cloud.google.com/compute-class"], count)
        pool = pool or leaf(self.auto_pools.get(name, ""))
        path = next((path for path, _ in self.fakes.world.of_kind("locations/nodePools") if leaf(path) == pool), "")
        if not path:
            return []
        entry = self.fakes.world.resources[path]
        scaling = entry.body.get("autoscaling", {}).get("enabled")
        size = sum(manager.body["targetSize"] for _, manager in self.fakes.container.groups.of_pool(path))
        if scaling and size < count and not self.trouble.unschedulable:
            self.fakes.container.scale(cluster["name"], pool, count)
        return self.fakes.container.nodes(cluster["name"], pool)

    def _compute_class(self, cluster: Object, name: str, count: int) -> str:
        """Node pool auto-creation by a compute class; the path of the pool."""
        found = get(self.api, Ref("cloud.google.com/v1", "ComputeClass", name))
        assert found, f"no ComputeClass {name}"
        labels, priority = found["spec"]["nodePoolConfig"]["nodeLabels"], found["spec"]["priorities"][0]
        zone = (priority.get("location") or priority["reservations"]["specific"][0])["zones"][0]
        pool = self.fakes.container.provision(
            cluster["name"], priority["machineType"], zone, count, config={"labels": {**labels, _DRANET: "true"}}
        )
        return next(path for path, _ in self.fakes.world.of_kind("locations/nodePools") if leaf(path) == pool)

    def _pod(self, ray: Object, name: str, kind: str, template: Object) -> None:
        labels = {**template["metadata"]["labels"], "ray.io/cluster": ray["metadata"]["name"], "ray.io/node-type": kind}
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": ray["metadata"]["name"], "uid": ray["metadata"]["uid"]}
        body = _object("v1", "Pod", name, ray["metadata"]["namespace"], labels)
        body["metadata"] |= {"ownerReferences": [owner], "annotations": template["metadata"].get("annotations", {})}
        self._ensure({**body, "spec": copy.deepcopy(template["spec"])})

    def _worker(self, namespace: str, name: str, has_node: bool) -> bool:
        """One worker's kubelet. Whether it is ready."""
        ref = Ref("v1", "Pod", name, namespace)
        for reason, message in self.trouble.events if name.endswith("-0") else []:
            event = _object("v1", "Event", f"{name}.{abs(hash(message)):x}", namespace)
            involved = {"kind": "Pod", "name": name, "namespace": namespace}
            self._ensure({**event, "type": "Warning", "reason": reason, "message": message, "involvedObject": involved})
        if self.trouble.unschedulable or not has_node:
            why = self.trouble.unschedulable or f"0/3 nodes are available: 3 Insufficient {GPU}."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            self._status(ref, {"phase": "Pending", "conditions": [condition]})
            return False
        if self.trouble.image:
            waiting = {"reason": "ImagePullBackOff", "message": "manifest for example.test/ray not found: manifest unknown"}
            container = {"name": "ray-worker", "image": "example.test/ray", "imageID": "", "ready": False, "restartCount": 0}
            self._status(ref, {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": waiting}}]})
            return False
        self._status(ref, _running())
        return True

    def _job(self, job: Object) -> None:
        """KubeRay's operator for one job: it runs for a look, then it ends."""
        known = job.get("status", {})
        now = utc(self.fakes.clock.now())
        if not known.get("startTime"):
            self._status(Ref.of(job), {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "startTime": now})
        elif not known.get("endTime"):
            state = {"jobStatus": "FAILED", "message": self.trouble.job} if self.trouble.job else {"jobStatus": "SUCCEEDED"}
            self._status(Ref.of(job), {**state, "jobDeploymentStatus": "Complete", "endTime": now})

    def _domain(self, domain: Object) -> None:
        """NVIDIA's controller: the claim template of a compute domain, and its end."""
        metadata = domain["metadata"]
        name = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        ref = Ref("resource.k8s.io/v1", "ResourceClaimTemplate", name, metadata["namespace"])
        if metadata.get("deletionTimestamp"):
            found = get(self.api, ref)
            if found:
                self._remove(found)
            return
        channel = {"requests": [{"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}]}
        self._ensure({**_object(ref.api_version, ref.kind, name, ref.namespace), "spec": {"spec": {"devices": channel}}})

    def _collect(self, item: Object) -> None:
        """Garbage collector and the controllers behind finalizers: what is being deleted and has no dependents goes."""
        if not item["metadata"].get("deletionTimestamp"):
            return
        if item["kind"] == "RayCluster" and list_(self.api, "v1", "Pod", labels={"ray.io/cluster": item["metadata"]["name"]}):
            return
        self._remove(item)

    def _ensure(self, body: Object) -> None:
        ref = Ref.of(body)
        if get(self.api, ref) is None:
            self.api.call("POST", self.api.collection(ref.api_version, ref.kind, ref.namespace), body=body)

    def _remove(self, item: Object) -> None:
        """Take an object away, finalizers and grace periods included."""
        path = self.api.path(Ref.of(item))
        for verb, body, kind in (
            ("DELETE", {"propagationPolicy": "Background", "gracePeriodSeconds": 0}, "application/json"),
            ("PATCH", {"metadata": {"finalizers": None}}, MERGE),
        ):
            try:
                self.api.call(verb, path, body=body, content_type=kind)
            except ApiError as error:
                if error.status != 404:
                    raise

    def _status(self, ref: Ref, status: dict[str, Any]) -> None:
        found = get(self.api, ref)
        if found is not None and {**found.get("status", {}), **status} != found.get("status", {}):
            self.api.call("PATCH", f"{self.api.path(ref)}/status", body={"status": status}, content_type=MERGE)


_DRANET = "cloud.google.com/gke-networking-dra-driver"


def _object(api_version: str, kind: str, name: str, namespace: str, labels: dict[str, str] | None = None) -> Object:
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _running() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(0))
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}], "containerStatuses": []}
