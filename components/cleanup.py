"""The exit task."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def cleanup(
    job_name: str,
    output_root: str,
    status: dsl.PipelineTaskFinalStatus,
) -> str:
    """Frees what the run still holds, however it ended, and says why it failed. Returns what was done."""
    from tuneline.tasks import cleanup as task

    return task.run(job_name, output_root, status.state)
