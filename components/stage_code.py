"""User code, in the store."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def stage_code(
    spec: str,
    job_name: str,
    code: dsl.Output[dsl.Artifact],
) -> NamedTuple("Staged", digest=str):
    """Brings the user's code into the store. Not cached: what a folder holds is no parameter."""
    from tuneline.tasks import stage_code as task

    return task.run(spec, job_name, code)
