"""release_gpus: the Ray cluster goes as soon as training has ended."""

from __future__ import annotations

from pathlib import Path

from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.log import get_logger
from tuneline.rayjobs.attempts import Attempts
from tuneline.rayjobs.base import RayCluster
from tuneline.rayjobs.local import LocalCluster
from tuneline.tasks.context import running_spec
from tuneline.tasks.gke import Site

_log = get_logger("release_gpus")
_GONE_SECONDS = 60.0


def run(spec_json: str, job_name: str, *, clock: Clock = SYSTEM) -> str:
    """Release what training held, now that it has ended. Returns what was done.

    Raises:
        ClusterError, LeftBehind, DeleteStuck: Something is left; names it.
    """
    with running_spec("release_gpus", spec_json, job_name, clock=clock) as (task, _):
        done = release_on_gke(task.site) if task.site else release(task.store, task.run_id, clock=clock)
        task.notes["done"] = done
        return done


def release_on_gke(site: Site) -> str:
    """Remove what the run holds in the cluster and its GPU nodes. Returns what was done, and the GPU-minutes."""
    from tuneline.tasks.gke_release import release as release_everything

    return str(release_everything(site))


def release(store: Store, run_id: str, *, clock: Clock = SYSTEM, cluster: RayCluster | None = None) -> str:
    """End the run's Ray cluster and every process of the run; again and again does no harm. Returns what was done.

    Raises:
        ClusterError: If something is left after a minute; names it.
    """
    cluster = cluster or LocalCluster(store, run_id, clock=clock)
    held = Path(cluster.record).exists()
    cluster.remove(Deadline.after(clock, _GONE_SECONDS))
    Attempts.close(store, run_id)
    done = "the Ray head is gone" if held else "there was no Ray head"
    _log.info("%s; no Ray process of run %s is left", done, run_id)
    return done
