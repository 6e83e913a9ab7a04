"""The data set, in the store: train.parquet and test.parquet in verl's schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tuneline.config import rules
from tuneline.config.spec import is_folder
from tuneline.core.errors import StagingError
from tuneline.core.files import scratch_dir
from tuneline.tasks import adapters, hub, staging
from tuneline.tasks.context import Artifact, current_run, running


class Staged(NamedTuple):
    """What was staged."""

    digest: str
    train_rows: int
    test_rows: int


def run(
    output_root: str, data_id: str, data_revision: str, data_adapter: str, data_seed: int, ops_rerun_token: str, dataset: Artifact
) -> Staged:
    """Stage the data set: made here, from a folder of parquet or jsonl, or from the Hugging Face hub at one commit.

    Raises:
        StagingError: If a split is missing or empty, a row is not in the adapter's schema, or a test row is also in train.
    """
    parameters: dict[str, Any] = {
        "data_id": data_id,
        "data_revision": data_revision,
        "data_adapter": data_adapter,
        "data_seed": data_seed,
        "ops_rerun_token": ops_rerun_token,
    }
    with running("stage_dataset", root=output_root, run_id=current_run(), parameters=parameters) as task:
        fetch, revision = _source(data_id, data_revision, data_seed)
        rows: dict[str, int] = {}

        def fill(folder: Path) -> None:
            with scratch_dir(folder.parent, "raw") as raw:
                fetch(raw)
                rows.update(adapters.adapt(raw, folder, data_adapter))

        folder, digest = staging.stage(
            task,
            task.store.dataset,
            fill,
            kind="dataset",
            origin={"id": data_id, "revision": revision or "local", "licence": "UNKNOWN"},
        )
        task.emit("dataset", dataset, folder, kind="dataset", digest=digest, dataset_sha256=digest)
        task.notes.update(data=data_id, rows=f"{rows['train']} train, {rows['test']} test", digest=digest[:12])
        return Staged(digest, rows["train"], rows["test"])


def _source(data_id: str, data_revision: str, seed: int) -> tuple[Callable[[Path], Any], str]:
    if data_id in rules.BUILT_DATASETS:
        from tuneline.engines.arithmetic import write_dataset

        return lambda folder: write_dataset(folder, seed), ""
    if is_folder(data_id):
        if not any(path.suffix in adapters.SUFFIXES for path in staging.source_files(Path(data_id))):
            raise StagingError(
                f"{data_id} holds no data set", asked="*.parquet or *.jsonl", found="none", next_move="name the folder that holds them"
            )
        return staging.copy_folder(data_id), ""
    commit = hub.resolve_commit(data_id, data_revision, kind="dataset")
    return hub.download(data_id, commit, kind="dataset"), commit
