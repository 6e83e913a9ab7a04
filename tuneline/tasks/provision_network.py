"""The networks of the run."""

from __future__ import annotations

from tuneline.core.clock import SYSTEM, Clock
from tuneline.resources.networks import ensure_networks
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site

NOTHING = "nothing to do on this computer: the run needs no network"


def run(spec_json: str, job_name: str, *, clock: Clock = SYSTEM) -> str:
    """The networks, subnets and firewall rules; on this computer none. Returns what was done."""
    with running_spec("provision_network", spec_json, job_name, clock=clock) as (task, _):
        done = provision(task.site) if task.site else NOTHING
        task.notes["done"] = done
        return done


def provision(site: Site) -> str:
    """Every network of the run is there. Returns which.

    Raises:
        NotFound: The zone has no RoCE, or an adopted network no subnet in the region.
        Conflict: A name is taken by something else.
    """
    ensure_networks(site.google, site.spec, site.names, site.mark, site.inventory)
    found = [entry for entry in site.inventory.entries if entry.kind == "network"]
    return ", ".join(f"{entry.name} ({'made' if entry.created else 'adopted'})" for entry in found)
