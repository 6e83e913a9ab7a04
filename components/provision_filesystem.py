"""The parallel file system, where the recipe has one."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def provision_filesystem(spec: str, job_name: str) -> str:
    """Creates or adopts the file system that the run needs. Returns what was done."""
    from tuneline.tasks import provision_filesystem as task

    return task.run(spec, job_name)
