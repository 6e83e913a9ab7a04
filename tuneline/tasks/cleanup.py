"""The exit task: free what the run still holds, however it ended, and say why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core import log
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import TunelineError
from tuneline.gcp import gke
from tuneline.gcp.documents import Documents, Folder, open_documents
from tuneline.tasks import release_gpus
from tuneline.tasks.context import run_id_of, running
from tuneline.tasks.gke import Site, google_of

logger = log.get_logger("tasks.cleanup")
NOTHING = "nothing to clean up: the run made nothing"


def run(
    job_name: str,
    infra_platform: str,
    infra_project: str,
    infra_region: str,
    infra_account_storage: str,
    output_root: str,
    state: str,
    *,
    clock: Clock = SYSTEM,
) -> str:
    """The exit task's flow. Returns what was done.

    It can read no other task's output. On GKE the parameters stand in the store, where provision_storage put them before anything else
    was made; so this task takes only what finds the store and the run's id.
    """
    run_id = run_id_of(infra_platform, infra_project, infra_region, job_name)
    if infra_platform == "local":
        return end_run(run_id, output_root, state)
    google = google_of(infra_project, {"storage": infra_account_storage}, clock)
    begun: Mapping[str, Any] | None = open_documents(output_root, google).read(Store(output_root).spec(run_id))
    if begun is None:
        logger.info("%s", NOTHING)
        return NOTHING
    site = Site(RunSpec.build(begun["spec"]), run_id, clock)
    with running("cleanup", root=output_root, run_id=run_id, parameters={"state": state}, site=site, clock=clock) as task:
        try:
            done = end(site)
        finally:
            tell(task.documents, task.store.run_errors(run_id))
        task.notes.update(state=state, done=done)
        return done


def end_run(run_id: str, output_root: str, state: str) -> str:
    """Release a local run's Ray cluster; models, data and checkpoints stay. Returns what was done.

    Args:
        state: SUCCEEDED | FAILED | CANCELLED, as the pipeline says.
    """
    # Before anything is recorded: a store that takes no writing, or whose lineage is damaged, may not keep GPUs held.
    done = ""
    failure: TunelineError | None = None
    try:
        done = release_gpus.release(Store(output_root), run_id)
    except TunelineError as stuck:
        failure = stuck
    with running("cleanup", root=output_root, run_id=run_id, parameters={"state": state}) as task:
        if failure:
            raise failure
        task.notes.update(state=state, done=done)
        tell(task.documents, task.store.run_errors(run_id))
        return done


def end(site: Site) -> str:
    """Remove what ops_cleanup_policy says, never models, data, checkpoints or their bucket. Returns what was done.

    Raises:
        LeftBehind, DeleteStuck: Something is left at its deadline; names it.
    """
    from tuneline.tasks.gke_release import release
    from tuneline.tasks.provision_cluster import note_uid

    policy = site.spec.ops_cleanup_policy
    if policy == "none":
        return "everything stays: ops_cleanup_policy=none"
    fault: TunelineError | None = None
    done = ""
    try:
        done = str(release(site))
        if policy == "all" and (api := site.find_api()):
            note_uid(site, api)
    except TunelineError as error:
        fault = error
    if policy == "all":
        teardown = site.teardown()
        ended = teardown.run("all")
        done = "; ".join(
            filter(None, [done, f"deleted {', '.join(ended.deleted) or 'nothing'}", ", ".join(f"kept {item}" for item in ended.kept)])
        )
    # What could not be removed from a cluster is gone with the cluster.
    if fault and (policy != "all" or gke.get_cluster(site.google, site.spec.infra_region, site.names.cluster) is not None):
        raise fault
    return done


def tell(documents: Documents, folder: str) -> None:
    """Print why tasks failed."""
    for error in errors_of(folder, documents):
        logger.error("%s failed (attempt %s): %s", error["task"], error["attempt"], error["error"])


def errors_of(folder: str, documents: Documents | None = None) -> list[dict[str, str]]:
    """Every failure that the run's tasks told of, oldest first."""
    documents = documents or Folder()
    found = [value for path in documents.names(folder) if (value := documents.read(path))]
    return sorted(found, key=lambda error: str(error["at"]))
