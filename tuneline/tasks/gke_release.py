"""What a run holds in a cluster goes: its Ray cluster and jobs, domains and claims, volumes, GPU nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuneline.core.clock import Deadline
from tuneline.core.errors import TunelineError
from tuneline.core.log import get_logger
from tuneline.kube.api import Api
from tuneline.kube.errors import DeleteStuck
from tuneline.kube.objects import RUN_KINDS, RUN_LABEL, delete_, list_, refs_of_run
from tuneline.tasks import gpu_time, nccl_check
from tuneline.tasks.gke import Site

_log = get_logger("release")

OBJECTS_SECONDS = 900.0
#: An idle node of Autopilot goes after about ten minutes.
NODES_SECONDS = 1800.0
POLL_SECONDS = 10.0
#: The autoscaler removes an idle node by its class, so the class goes after the nodes.
LAST = ("cloud.google.com/v1", "ComputeClass")


@dataclass
class Released:
    """What a release did.

    Attributes:
        done: What went, in words.
        gpus: The run's GPU-minutes, None where it had no GPUs.
    """

    done: list[str] = field(default_factory=list)
    gpus: gpu_time.GpuTime | None = None

    def __str__(self) -> str:
        return ", ".join(self.done) + (" gone" if self.done else "nothing was held") + (f"; {self.gpus}" if self.gpus else "")


def release(site: Site) -> Released:
    """End what the run holds, and prove that no GPU node of it is left; again and again does no harm.

    The pool goes even where the cluster's API server does not answer: it is what costs.

    Raises:
        LeftBehind, DeleteStuck: Something is still there at its deadline; names it.
        KubeError: The cluster could not be asked; the pool is gone nevertheless.
    """
    released, fault = Released(), None
    try:
        api = site.find_api()
        if api is not None:
            released.done += _objects(site, api)
    except TunelineError as error:
        _log.error("the objects of run %s could not all be removed: %s", site.run_id, error)
        api, fault = None, error
    released.done += site.teardown().run("gpus").deleted
    if fault:
        raise fault
    if api is not None:
        _nodes_gone(site, api)
        released.done += _delete(site, api, LAST, Deadline.after(site.clock, OBJECTS_SECONDS))
    site.documents.delete(site.store.raycluster(site.run_id))
    site.documents.delete(site.store.training_budget(site.run_id))
    if site.spec.gpu_machine:
        released.gpus = gpu_time.close(site)
    return released


def _objects(site: Site, api: Api) -> list[str]:
    """Jobs and Ray cluster with their pods, then domains, claims, volumes."""
    until, gone = Deadline.after(site.clock, OBJECTS_SECONDS), []
    if site.spec.gpu_machine:
        gpu_time.note_nodes(site, gpu_time.gpu_nodes(api, site))
        jobs = list_(api, "ray.io/v1", "RayJob", namespace=site.spec.infra_namespace, labels={RUN_LABEL: site.run_id})
        gpu_time.note_jobs(site, [job for job in jobs if job["metadata"]["name"] != nccl_check.job_name(site.run_id)])
    for kind in RUN_KINDS:
        if kind != LAST:
            gone += _delete(site, api, kind, until)
    claims = api.preferred_version("resource.k8s.io")
    if claims:
        _claims_gone(site, api, claims, until)
    return gone


def _delete(site: Site, api: Api, kind: tuple[str, str], until: Deadline) -> list[str]:
    """Delete the run's objects of a kind; which they were."""
    refs = refs_of_run(api, site.run_id, (kind,))
    delete_(api, refs, until)
    return [str(ref) for ref in refs]


def _claims_gone(site: Site, api: Api, version: str, until: Deadline) -> None:
    """Claims go with the pods that they were made for."""
    while True:
        found = list_(api, version, "ResourceClaim", namespace=site.spec.infra_namespace)
        left = [claim["metadata"]["name"] for claim in found if claim["metadata"]["name"].startswith(f"{site.run_id}-")]
        if not left:
            return
        if until.passed:
            raise DeleteStuck(
                f"{len(left)} device claims of run {site.run_id} are still there",
                found=", ".join(left),
                next_move="see who has reserved them: kubectl describe resourceclaim",
            )
        site.clock.sleep(POLL_SECONDS)


def _nodes_gone(site: Site, api: Api) -> None:
    until = Deadline.after(site.clock, NODES_SECONDS)
    while left := gpu_time.gpu_nodes(api, site):
        if until.passed:
            raise DeleteStuck(
                f"{len(left)} GPU nodes of run {site.run_id} are still there",
                found=", ".join(left),
                next_move="they cost money: see what keeps them with kubectl describe node, and run cleanup again",
            )
        site.clock.sleep(POLL_SECONDS)
