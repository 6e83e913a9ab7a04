"""GRPO training."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def train(
    spec: str,
    job_name: str,
    training_key: str,
    model: dsl.Input[dsl.Model],
    dataset: dsl.Input[dsl.Dataset],
    code: dsl.Input[dsl.Artifact],
    checkpoint: dsl.Output[dsl.Model],
) -> NamedTuple("Trained", step=int, checkpoint_uri=str):
    """Runs the training job to its end; a retry adopts the running job or resumes from the newest complete checkpoint."""
    from tuneline.tasks import train as task

    return task.run(spec, job_name, training_key, model, dataset, code, checkpoint)
