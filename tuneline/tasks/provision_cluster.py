"""The cluster of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import get_logger
from tuneline.resources import bucket, clusters
from tuneline.resources.networks import subnetwork_of
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site

NOTHING = "nothing to do on this computer: the run needs no cluster"

if TYPE_CHECKING:
    from tuneline.kube.api import Api

_log = get_logger("provision_cluster")


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
    note_uid(site, site.api)
    ensure_operator(site)
    # Last: the identity pool that the member's name is in comes with the project's first such cluster.
    bucket.ensure_access(google, spec, names, site.inventory, number=site.number)
    return f"cluster {names.cluster} {'made' if found.created else 'adopted'}, version {found.resource.current_master_version}"


def note_uid(site: Site, api: Api) -> None:
    """Record the uid in the names of the load balancers that Kubernetes makes: once the cluster is gone, nobody can ask for it."""
    from tuneline.kube.api import Ref
    from tuneline.kube.objects import get

    entry = site.inventory.find("cluster", site.names.cluster)
    config = get(api, Ref("v1", "ConfigMap", "ingress-uid", "kube-system"))
    if entry is None or config is None:
        _log.info("cluster %s has made no load balancer so far", site.names.cluster)
        return
    site.inventory.note("cluster", entry.name, place=entry.place, created=entry.created, uid=str(config.get("data", {}).get("uid", "")))
