"""The cluster of the run."""

from __future__ import annotations

from tuneline.tasks.context import running_spec

NOTHING = "nothing to do on this computer: the run needs no cluster"


def run(spec_json: str, job_name: str) -> str:
    """Say, and record, that this computer needs none. Returns what was done."""
    with running_spec("provision_cluster", spec_json, job_name) as (task, _):
        task.notes["done"] = NOTHING
        return NOTHING
