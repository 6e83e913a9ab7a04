"""The parallel file system of the run."""

from __future__ import annotations

from tuneline.core.clock import SYSTEM, Clock
from tuneline.resources.filesystem import ensure_filesystem
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site

NOTHING = "nothing to do on this computer: the run reads and writes its own disk"
BUCKET = "nothing to do: workers see the bucket by GCS FUSE"


def run(spec_json: str, job_name: str, *, clock: Clock = SYSTEM) -> str:
    """Managed Lustre where the run asks for it; elsewhere none. Returns what was done."""
    with running_spec("provision_filesystem", spec_json, job_name, clock=clock) as (task, _):
        done = provision(task.site) if task.site else NOTHING
        task.notes["done"] = done
        return done


def provision(site: Site) -> str:
    """The file system is there and reachable from the cluster's network. Returns its address.

    Raises:
        Stockout: The zone cannot give it.
        Conflict: A name is taken by something else.
    """
    if site.spec.infra_filesystem != "lustre":
        return BUCKET
    address, filesystem = ensure_filesystem(site.google, site.spec, site.names, site.mark, site.inventory, number=site.number)
    return f"Lustre {filesystem} at {address}"
