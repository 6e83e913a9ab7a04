"""The cluster of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.resources import bucket, clusters
from tuneline.resources.networks import subnetwork_of
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site

#: GKE's load balancer controller starts with a new cluster, a little later than the rest.
UID_SECONDS = 120.0
ANSWER_SECONDS = 300.0
NOTHING = "nothing to do on this computer: the run needs no cluster"

if TYPE_CHECKING:
    from tuneline.kube.api import Api


def run(spec_json: str, job_name: str, *, clock: Clock = SYSTEM) -> str:
    """The cluster that the run's GPU nodes join; on this computer none. Returns what was done."""
    with running_spec("provision_cluster", spec_json, job_name, clock=clock) as (task, _):
        done = provision(task.site) if task.site else NOTHING
        task.notes["done"] = done
        return done


def provision(site: Site) -> str:
    """The cluster runs and answers, has a Ray operator, and its pods may use the bucket. Returns what was done.

    Raises:
        Conflict: A cluster of this name differs or is another's; names both values.
        Quota, Stockout, Permission: As Google says.
        ClusterUnreachable: It runs, and no endpoint of it can be used from here.
    """
    from tuneline.tasks.charts import ensure_operator

    google, spec, names = site.google, site.spec, site.names
    subnetwork = subnetwork_of(google, spec, names)
    found = clusters.ensure_cluster(google, spec, names, site.mark, site.inventory, subnetwork=subnetwork)
    answering(site)
    ensure_operator(site)
    until = Deadline.after(site.clock, UID_SECONDS)
    while not note_uid(site, site.api) and not until.passed:
        site.clock.sleep(10.0)
    # Last: the identity pool that the member's name is in comes with the project's first such cluster.
    bucket.ensure_access(google, spec, names, site.inventory, number=site.number)
    return f"cluster {names.cluster} {'made' if found.created else 'adopted'}, version {found.resource.current_master_version}"


def answering(site: Site) -> None:
    """Wait until the API server answers: the name of a new cluster's endpoint takes minutes to be known everywhere.

    Raises:
        ClusterUnreachable: It does not; the message says what each endpoint answered.
    """
    from tuneline.kube.errors import ClusterUnreachable

    until = Deadline.after(site.clock, ANSWER_SECONDS)
    while True:
        try:
            _ = site.api
            return
        except ClusterUnreachable:
            if until.passed:
                raise
        site.clock.sleep(15.0)


def note_uid(site: Site, api: Api) -> bool:
    """Record the uid in the names of what Kubernetes makes for load balancers: once the cluster is gone, nobody can ask for it.

    Returns:
        False where GKE's controller has not made one up yet.
    """
    from tuneline.kube.api import Ref
    from tuneline.kube.objects import get

    entry = site.inventory.find("cluster", site.names.cluster)
    config = get(api, Ref("v1", "ConfigMap", "ingress-uid", "kube-system"))
    uid = str((config or {}).get("data", {}).get("uid", ""))
    if entry and uid:
        site.inventory.note("cluster", entry.name, place=entry.place, created=entry.created, uid=uid)
    return bool(uid)
