"""launch_raycluster: the run's Ray cluster, unless its training is already done."""

from __future__ import annotations

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import get_logger
from tuneline.engines.base import Engine
from tuneline.rayjobs.attempts import final_checkpoint
from tuneline.rayjobs.base import RayCluster
from tuneline.rayjobs.local import LocalCluster

_log = get_logger("launch_raycluster")


def launch(
    spec: RunSpec,
    store: Store,
    run_id: str,
    training_key: str,
    engine: Engine,
    *,
    clock: Clock = SYSTEM,
    cluster: RayCluster | None = None,
) -> str:
    """Adopt the run's Ray cluster or bring one up.

    Returns:
        The path of the cluster's record, or '' where a complete final checkpoint of this training makes a cluster needless.

    Raises:
        ClusterError: If no cluster comes up in time.
    """
    if not spec.train_force and (checkpoint := final_checkpoint(store, training_key, engine, spec)):
        _log.info("training %s is complete (%s); no Ray cluster is started", training_key[:12], checkpoint.path)
        return ""
    cluster = cluster or LocalCluster.of(spec, store, run_id, clock=clock)
    cluster.ensure()
    return cluster.record
