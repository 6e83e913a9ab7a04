"""The model in the registry."""

from kfp import dsl

from components.images import SENTINEL
from tuneline.artifacts import VertexModel


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def register(
    spec: str,
    job_name: str,
    hf_model: dsl.Input[dsl.Model],
    metrics: dsl.Input[dsl.Metrics],
    registered: dsl.Output[VertexModel],
) -> str:
    """Registers the converted model; the same bytes again give the same version. Returns NAME@VERSION."""
    from tuneline.tasks import register as task

    return task.run(spec, job_name, hf_model, metrics, registered)
