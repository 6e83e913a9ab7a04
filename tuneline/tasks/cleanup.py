"""The exit task: free what the run still holds, however it ended, and say why it failed."""

from __future__ import annotations

from pathlib import Path

from tuneline.config.store import Store
from tuneline.core import log
from tuneline.core.errors import TunelineError
from tuneline.core.files import read_json
from tuneline.tasks import release_gpus
from tuneline.tasks.context import local_run_id, running

logger = log.get_logger("tasks.cleanup")


def run(job_name: str, output_root: str, state: str) -> str:
    """The exit task's flow. Returns what was done."""
    return end_run(local_run_id(job_name), output_root, state)


def end_run(run_id: str, output_root: str, state: str) -> str:
    """Release the run's Ray cluster; models, data and checkpoints stay. Returns what was done.

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
        for error in errors_of(task.store.run_errors(run_id)):
            logger.error("%s failed (attempt %s): %s", error["task"], error["attempt"], error["error"])
        return done


def errors_of(folder: str) -> list[dict[str, str]]:
    """Every failure that the run's tasks told of, oldest first."""
    found = [read_json(path) for path in sorted(Path(folder).glob("*.json"))] if Path(folder).is_dir() else []
    return sorted(found, key=lambda error: str(error["at"]))
