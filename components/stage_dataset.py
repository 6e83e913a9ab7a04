"""The data set, in the store."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def stage_dataset(
    output_root: str,
    data_id: str,
    data_revision: str,
    data_adapter: str,
    data_seed: int,
    ops_rerun_token: str,
    dataset: dsl.Output[dsl.Dataset],
) -> NamedTuple("Staged", digest=str, train_rows=int, test_rows=int):
    """Brings the data set into the store in the engine's schema. Cached by its parameters."""
    from tuneline.tasks import stage_dataset as task

    return task.run(output_root, data_id, data_revision, data_adapter, int(data_seed), ops_rerun_token, dataset)
