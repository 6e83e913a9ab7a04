"""User code, in the store."""

from __future__ import annotations

from tuneline.tasks import staging
from tuneline.tasks.context import NOTHING, Artifact, running_spec


def run(spec_json: str, job_name: str, code: Artifact) -> tuple[str]:
    """Stage the folder `train_code_uri`; without one the artifact says so and its digest is ''."""
    with running_spec("stage_code", spec_json, job_name) as (task, spec):
        if not spec.train_code_uri:
            code.metadata.update(NOTHING)
            task.notes["done"] = "no user code"
            return ("",)
        folder, digest = staging.stage(
            task,
            task.store.code,
            staging.copy_folder(spec.train_code_uri),
            kind="code",
            origin={"id": spec.train_code_uri},
        )
        task.emit("code", code, folder, kind="code", digest=digest)
        task.notes["digest"] = digest[:12]
        return (digest,)
