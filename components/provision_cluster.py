"""The cluster that GPU nodes join."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def provision_cluster(spec: str, job_name: str) -> str:
    """Creates or adopts the cluster that the run needs. Returns what was done."""
    from tuneline.tasks import provision_cluster as task

    return task.run(spec, job_name)
