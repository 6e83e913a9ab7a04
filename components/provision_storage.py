"""Where models, data, checkpoints and runs lie."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def provision_storage(spec: str, job_name: str) -> str:
    """Creates the store's layout. Returns its root."""
    from tuneline.tasks import provision_storage as task

    return task.run(spec, job_name)
