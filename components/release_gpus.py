"""GPUs go as soon as training ends."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def release_gpus(spec: str, job_name: str) -> str:
    """Ends the run's Ray cluster and proves that nothing of it is left. Returns what was released."""
    from tuneline.tasks import release_gpus as task

    return task.run(spec, job_name)
