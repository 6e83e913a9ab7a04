"""launch_raycluster: the run's Ray cluster, unless its training is already done."""

from __future__ import annotations

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import get_logger
from tuneline.engines.base import Engine
from tuneline.engines.registry import get_engine
from tuneline.rayjobs.attempts import final_checkpoint
from tuneline.rayjobs.base import RayCluster
from tuneline.rayjobs.local import LocalCluster
from tuneline.tasks import training
from tuneline.tasks.context import Artifact, running_spec

_log = get_logger("launch_raycluster")


def run(spec_json: str, job_name: str, model: Artifact, dataset: Artifact, code: Artifact) -> str:
    """Prove the staged inputs, then bring up Ray where this training needs it. Returns the training key."""
    with running_spec("launch_raycluster", spec_json, job_name) as (task, spec):
        staged, engine = training.take_staged(task, model, dataset, code), get_engine(spec.train_engine)
        key = training.key_of(spec, engine, staged)
        training.write_description(task.store.checkpoints(key), training.describe(spec, key, staged))
        started = launch(spec, task.store, task.run_id, key, engine)
        task.notes.update(training=key[:12], ray="up" if started else "not needed: this training is complete")
        return key


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
