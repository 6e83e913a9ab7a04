"""Where models, data, checkpoints and runs lie; the run's records begin here, before anything else is made."""

from __future__ import annotations

from pathlib import Path

from tuneline.config.store import KEPT
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.files import make_dir
from tuneline.core.log import get_logger
from tuneline.gcp.services import ensure_services
from tuneline.resources.bucket import ensure_bucket
from tuneline.resources.inventory import mark_of
from tuneline.resources.requests import services_of
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site, begin

_log = get_logger("provision_storage")


def run(spec_json: str, job_name: str, *, clock: Clock = SYSTEM) -> str:
    """Create the store's layout; what is there stays. Returns its root."""
    with running_spec("provision_storage", spec_json, job_name, clock=clock) as (task, spec):
        if task.site:
            provision(task.site)
        else:
            lay_out(Path(spec.output_root))
        task.notes["root"] = spec.output_root
        return spec.output_root


def lay_out(root: Path) -> None:
    """The folders of a store."""
    for name in (*KEPT, "runs", "leases", "lineage"):
        make_dir(root / name)


def provision(site: Site) -> None:
    """The APIs are on, the bucket is there, and it holds the parameters of the run.

    Raises:
        Permission: An API is off and the caller may not switch it on.
        Conflict: The bucket is another project's, or works otherwise.
        StoreError: Another run with this id is there.
    """
    enabled = ensure_services(site.google, services_of(site.spec), number=site.number)
    if enabled:
        _log.info("switched on %s", ", ".join(enabled))
    # The run's own mark counts from the record that is about to be written into this bucket.
    mark = mark_of(site.spec, site.run_id, site.clock.now())
    ensure_bucket(site.google, site.spec, site.names, mark, site.inventory, number=site.number)
    begin(site)
