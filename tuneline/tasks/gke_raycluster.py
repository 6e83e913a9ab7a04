"""The run's Ray cluster on GKE: its manifests, its GPU pool, its readiness; and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from tuneline.config.machines import MACHINES
from tuneline.core.clock import Deadline
from tuneline.core.errors import TunelineError
from tuneline.core.log import get_logger
from tuneline.gcp.errors import Quota, Stockout
from tuneline.kube import diagnose
from tuneline.kube.api import Api, Ref
from tuneline.kube.context import GIB_IMAGES
from tuneline.kube.diagnose import Cause
from tuneline.kube.discover import find_operator, resource_api
from tuneline.kube.errors import ImageError
from tuneline.kube.facts import Facts, Lustre, NodeNetwork, node_networks
from tuneline.kube.images import resolve_digest
from tuneline.kube.objects import Object, apply_, delete_, get, list_
from tuneline.kube.ray import count_gpus
from tuneline.kube.render import render
from tuneline.resources import clusters, filesystem
from tuneline.resources.networks import uses_rdma_networks
from tuneline.tasks import gpu_time
from tuneline.tasks.charts import ensure_dra_driver
from tuneline.tasks.gke import Site
from tuneline.tasks.nccl_check import check

_log = get_logger("raycluster")

POLL_SECONDS = 10.0
#: How often the cluster is asked for causes, and how long one that waiting cannot help must last: pods are made anew once or twice.
DIAGNOSE_SECONDS = 30.0
LASTING_SECONDS = 90.0
_GONE_SECONDS = 600.0


def facts_of(site: Site, api: Api, *, resolve: Callable[[str], str]) -> Facts:
    """What the run's manifests need to know of project and cluster.

    Args:
        resolve: From an image to the same with its digest.

    Raises:
        ImageError: There is no image for Ray, or no digest of it.
        NotFound: The file system is not there.
    """
    spec, names = site.spec, site.names
    if not spec.gpu_image:
        raise ImageError(
            f"there is no image for engine {spec.train_engine} on GKE", asked="gpu_image=''", next_move="set gpu_image, by digest"
        )
    machine = MACHINES.get(spec.gpu_machine)
    bucket, _, prefix = spec.output_root.removeprefix("gs://").partition("/")
    networks: tuple[NodeNetwork, ...] = ()
    if machine and uses_rdma_networks(spec):
        gvnic = (names.gvnic, names.gvnic_subnetwork)
        networks = node_networks(spec.infra_name, gvnic, names.roce, names.roce_subnetworks[: machine.rdma_nics])
    return Facts(
        image=resolve(spec.gpu_image),
        # The image is built from the requirements that this runs with.
        ray_version=version("ray"),
        bucket=bucket,
        prefix=prefix,
        lustre=_lustre(site) if spec.infra_filesystem == "lustre" else None,
        resource_api=resource_api(api),
        cpu_pool="" if spec.infra_cluster_kind == "autopilot" else clusters.CPU_POOL,
        gpu_pool=names.pool if clusters.has_gpu_pool(spec) else "",
        networks=networks,
        operator=find_operator(api),
        gib_image=_pinned(GIB_IMAGES[machine.cpu_arch], resolve) if machine else "",
        expires=site.mark.expires,
    )


def _lustre(site: Site) -> Lustre:
    spec, name = site.spec, site.names.lustre
    address, system = filesystem.address_of(site.google, spec, site.names)
    return Lustre(address, system, f"{spec.infra_project}/{spec.infra_zone}/{name}")


def _pinned(image: str, resolve: Callable[[str], str]) -> str:
    try:
        return resolve(image)
    except ImageError as error:
        _log.warning("%s is used by its tag: %s", image, error.message)
        return image


@dataclass
class GkeRayCluster:
    """The one Ray cluster of a run; every method may be called again and goes on where it was.

    Attributes:
        resolve: From an image to the same with its digest.
        network: What the check of the GPUs' network found, '' without one.
    """

    site: Site
    resolve: Callable[[str], str] = resolve_digest
    network: str = ""
    _since: dict[Cause, float] = field(default_factory=dict)
    _asked: float = 0.0

    @property
    def ref(self) -> Ref:
        return Ref("ray.io/v1", "RayCluster", self.site.names.raycluster, self.site.spec.infra_namespace)

    def ensure(self) -> str:
        """Apply everything, buy the GPUs, and wait until Ray has them all. Returns the path of the cluster's record.

        Raises:
            Stockout, Quota, ReservationMismatch: Google does not give the machines; within three minutes of its first refusal.
            WorkloadFailed: Pods cannot start, or are not ready in time; the message is the cause.
            SlowNetwork: The GPUs do not reach each other at the speed of their machine.
            KubeError: The cluster refuses a manifest, or is not to be reached.
        """
        site, api = self.site, self.site.api
        facts = facts_of(site, api, resolve=self.resolve)
        manifests = render(site.spec, site.run_id, facts)
        *before, cluster = [*[one for one in manifests if one.shared], *[one for one in manifests if not one.shared]]
        found = get(api, self.ref)
        if found and found["metadata"].get("deletionTimestamp"):
            delete_(api, [self.ref], Deadline.after(site.clock, _GONE_SECONDS))
        for manifest in before:
            if manifest.kind == "ComputeDomain":
                ensure_dra_driver(site, facts)  # which brings the kind
            apply_(api, manifest.body)
        # GPUs come last: from here on the run costs what it costs.
        clusters.ensure_gpu_pool(site.google, site.spec, site.names, site.mark, site.inventory)
        apply_(api, cluster.body)
        self._wait(api, Deadline.after(site.clock, site.spec.gpu_ready_minutes * 60))
        if site.spec.gpu_nccl_check and site.spec.gpu_machine:
            self.network = check(site, api, facts)
        record = {"cluster": site.names.cluster, "location": site.spec.infra_region, "namespace": self.ref.namespace, "name": self.ref.name}
        path = site.store.raycluster(site.run_id)
        site.documents.write(path, {**record, "image": facts.image, "ray_version": facts.ray_version})
        return path

    def _wait(self, api: Api, deadline: Deadline) -> None:
        """Until head, workers and GPUs are there."""
        site = self.site
        seen: list[str] = []
        watch = clusters.watch_gpu_pool(site.google, site.spec, site.names) if clusters.has_gpu_pool(site.spec) else None
        while True:
            nodes = gpu_time.gpu_nodes(api, site)
            if set(nodes) - set(seen):
                gpu_time.note_nodes(site, nodes)
                seen = nodes
            lacking = self._lacking(api)
            if not lacking:
                _log.info("Ray cluster %s is ready", self.ref.name)
                return
            if watch:
                watch.check()
            self._check_causes(api)
            if deadline.passed:
                causes = diagnose.collect(api, self.ref.namespace, site.run_id)
                asked = f"Ray cluster {self.ref.name} within gpu_ready_minutes={site.spec.gpu_ready_minutes:g}; {lacking}"
                raise diagnose.failure(causes, asked=asked)
            _log.info("waiting for Ray cluster %s: %s", self.ref.name, lacking)
            site.clock.sleep(min(POLL_SECONDS, max(1.0, deadline.left)))

    def _lacking(self, api: Api) -> str:
        """What is not there yet, '' if all is."""
        spec, name = self.site.spec, self.ref.name
        wanted = spec.gpu_nodes if spec.gpu_machine else spec.gpu_workers
        found = get(api, self.ref) or {}
        pods = list_(api, "v1", "Pod", namespace=self.ref.namespace, labels={"ray.io/cluster": name})
        ready = [pod["metadata"]["labels"].get("ray.io/node-type") for pod in pods if _ready(pod)]
        if "head" not in ready:
            return f"its head is not ready, {ready.count('worker')} of {wanted} workers are"
        if ready.count("worker") < wanted:
            return f"{ready.count('worker')} of {wanted} workers are ready"
        status = found.get("status", {})
        if status.get("state") != "ready" or status.get("readyWorkerReplicas", wanted) < wanted:
            return f"its operator says: {status.get('state') or 'nothing yet'} {status.get('reason', '')}".rstrip()
        if spec.gpu_machine:
            # A worker is ready only once it has registered with the head; Ray's own count says with how many GPUs.
            gpus, counted = wanted * MACHINES[spec.gpu_machine].gpus, count_gpus(api, self.ref.namespace, _service(status, name))
            if counted is not None and counted < gpus:
                return f"Ray counts {counted} of {gpus} GPUs"
        return ""

    def _check_causes(self, api: Api) -> None:
        """Raise what waiting cannot help, once it has lasted."""
        now = self.site.clock.now()
        if now - self._asked < DIAGNOSE_SECONDS:
            return
        self._asked = now
        causes = [cause for cause in diagnose.collect(api, self.ref.namespace, self.site.run_id) if cause.final and cause.kind != "lost"]
        self._since = {cause: self._since.get(cause, now) for cause in causes}
        lasting = [cause for cause in causes if now - self._since[cause] >= LASTING_SECONDS]
        if lasting:
            raise typed(lasting, asked=f"Ray cluster {self.ref.name}")

    def tell(self) -> None:
        """Print every cause that the cluster shows, for a person."""
        try:
            for cause in diagnose.collect(self.site.api, self.ref.namespace, self.site.run_id):
                _log.error("%s: %s", cause.kind, cause.line)
        except TunelineError as error:
            _log.error("the cluster does not say why: %s", error.message)


def typed(causes: list[Cause], *, asked: str) -> TunelineError:
    """The causes as one error: machines that are not to be had are Google's errors, whoever told of them."""
    failure = diagnose.failure(causes, asked=asked)
    kinds: dict[str, Any] = {"stockout": Stockout, "quota": Quota}
    kind = kinds.get(causes[0].kind)
    return kind(failure.message, asked=asked, found=failure.found, next_move=failure.next_move) if kind else failure


def _service(status: Object, name: str) -> str:
    return str(status.get("head", {}).get("serviceName") or f"{name}-head-svc")


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return not pod["metadata"].get("deletionTimestamp") and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
