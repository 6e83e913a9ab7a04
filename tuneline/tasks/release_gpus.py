"""release_gpus: the Ray cluster goes as soon as training has ended."""

from __future__ import annotations

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.log import get_logger
from tuneline.rayjobs.attempts import Attempts
from tuneline.rayjobs.base import RayCluster
from tuneline.rayjobs.local import LocalCluster

_log = get_logger("release_gpus")
_GONE_SECONDS = 60.0


def release(spec: RunSpec, store: Store, run_id: str, *, clock: Clock = SYSTEM, cluster: RayCluster | None = None) -> None:
    """End the run's Ray cluster and every process of the run; again and again does no harm.

    Raises:
        ClusterError: If something is left after a minute; names it.
    """
    cluster = cluster or LocalCluster.of(spec, store, run_id, clock=clock)
    cluster.remove(Deadline.after(clock, _GONE_SECONDS))
    Attempts.close(store, run_id)
    _log.info("no Ray process of run %s is left", run_id)
