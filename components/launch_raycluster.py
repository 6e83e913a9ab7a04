"""The Ray cluster of the run."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def launch_raycluster(
    spec: str,
    job_name: str,
    model: dsl.Input[dsl.Model],
    dataset: dsl.Input[dsl.Dataset],
    code: dsl.Input[dsl.Artifact],
) -> str:
    """Verifies what was staged, then brings up Ray, unless this training is already complete. Returns the training key."""
    from tuneline.tasks import launch_raycluster as task

    return task.run(spec, job_name, model, dataset, code)
