"""launch_raycluster: the run's Ray cluster, unless its training is already done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import TunelineError
from tuneline.core.log import get_logger
from tuneline.engines import fit
from tuneline.engines.base import Engine
from tuneline.engines.registry import get_engine
from tuneline.rayjobs.attempts import final_checkpoint
from tuneline.rayjobs.base import RayCluster
from tuneline.rayjobs.local import LocalCluster
from tuneline.tasks import training
from tuneline.tasks.context import Artifact, running_spec
from tuneline.tasks.gke import Site

if TYPE_CHECKING:
    from tuneline.tasks.gke_raycluster import GkeRayCluster

_log = get_logger("launch_raycluster")


def run(spec_json: str, job_name: str, model: Artifact, dataset: Artifact, code: Artifact, *, clock: Clock = SYSTEM) -> str:
    """Prove the staged inputs, then bring up Ray where this training needs it. Returns the training key.

    Raises:
        SpecError: The model does not fit into the GPUs' memory: none is bought.
    """
    with running_spec("launch_raycluster", spec_json, job_name, clock=clock) as (task, spec):
        staged, engine = training.take_staged(task, model, dataset, code), get_engine(spec.train_engine)
        if spec.train_engine != "trl" and (config := task.documents.read(f"{staged.base.uri}/config.json")):
            fit.require(spec, config)
        key = training.key_of(spec, engine, staged)
        training.write_description(task.documents, task.store.training_description(key), training.describe(spec, key, staged, clock=clock))
        if task.site:
            task.notes["network"] = launch_on_gke(task.site)
            started = True
        else:
            started = bool(launch(spec, task.store, task.run_id, key, engine, clock=clock))
        task.notes.update(training=key[:12], ray="up" if started else "not needed: this training is complete")
        return key


def launch_on_gke(site: Site, cluster: GkeRayCluster | None = None) -> str:
    """Adopt the run's Ray cluster or bring one up. Returns what the check of the GPUs' network found, '' without one.

    A task that is killed leaves everything to its retry; one that fails tells the causes and frees the GPUs.

    Raises:
        GoogleError, KubeError: No machines, or pods that cannot start; names the cause.
    """
    from tuneline.tasks.gke_raycluster import GkeRayCluster
    from tuneline.tasks.gke_release import release

    cluster = cluster or GkeRayCluster(site)
    try:
        cluster.ensure()
    except TunelineError:
        cluster.tell()
        try:
            _log.error("no Ray cluster; freeing what was bought: %s", release(site))
        except TunelineError as left:
            _log.error("GPUs may be left, and cleanup tries again: %s", left)
        raise
    return cluster.network


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
