"""The gate."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def evaluate(
    spec: str,
    job_name: str,
    checkpoint: dsl.Input[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    curve: dsl.Output[dsl.HTML],
) -> bool:
    """Compares the engine's own validation at the first and the last step with the limits of the run. Returns whether it passed."""
    from tuneline.tasks import evaluate as task

    return task.run(spec, job_name, checkpoint, metrics, curve)
