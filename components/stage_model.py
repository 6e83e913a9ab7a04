"""The base model, in the store."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def stage_model(
    output_root: str,
    model_id: str,
    model_revision: str,
    model_seed: int,
    ops_rerun_token: str,
    model: dsl.Output[dsl.Model],
) -> NamedTuple("Staged", digest=str, revision=str):
    """Brings the base model into the store, whole and digested. Cached by its parameters."""
    from tuneline.tasks import stage_model as task

    return task.run(output_root, model_id, model_revision, int(model_seed), ops_rerun_token, model)
