"""The exit task."""

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def cleanup(
    job_name: str,
    infra_platform: str,
    infra_project: str,
    infra_region: str,
    infra_account_storage: str,
    output_root: str,
    status: dsl.PipelineTaskFinalStatus,
) -> str:
    """Frees what the run still holds, however it ended, and says why it failed. Returns what was done."""
    from tuneline.tasks import cleanup as task

    return task.run(job_name, infra_platform, infra_project, infra_region, infra_account_storage, output_root, status.state)
