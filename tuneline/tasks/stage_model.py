"""The base model, in the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tuneline.checkpoints import folders
from tuneline.checkpoints.find import open_tree
from tuneline.config import rules
from tuneline.config.spec import is_folder
from tuneline.core import log
from tuneline.core.errors import StagingError
from tuneline.tasks import hub, staging
from tuneline.tasks.context import Artifact, current_run, running

logger = log.get_logger("tasks.stage_model")


class Staged(NamedTuple):
    """What was staged."""

    digest: str
    revision: str


def run(output_root: str, model_id: str, model_revision: str, model_seed: int, ops_rerun_token: str, model: Artifact) -> Staged:
    """Stage the base model: made here, from a folder, or from the Hugging Face hub at one commit.

    Raises:
        StagingError: If it is no Hugging Face model (config.json and safetensors), or the hub refuses it.
        CheckpointError: If its safetensors are cut short, damaged or not those that its index names.
    """
    parameters = {"model_id": model_id, "model_revision": model_revision, "model_seed": model_seed, "ops_rerun_token": ops_rerun_token}
    with running("stage_model", root=output_root, run_id=current_run(), parameters=parameters) as task:
        fill, revision = _source(model_id, model_revision, model_seed)

        def checked(folder: Path) -> None:
            fill(folder)
            _check_model(folder, model_id)

        folder, digest = staging.stage(
            task,
            lambda digest: task.store.model(Path(model_id).name if is_folder(model_id) else model_id, revision or digest[:12]),
            checked,
            kind="base",
            origin={"id": model_id, "revision": revision or "local", "licence": "UNKNOWN"},
        )
        task.emit("model", model, folder, kind="base", digest=digest, base=f"{model_id}@{revision or digest[:12]}", base_sha256=digest)
        task.notes.update(model=model_id, digest=digest[:12])
        return Staged(digest, revision or digest[:12])


def _source(model_id: str, model_revision: str, seed: int) -> tuple[Callable[[Path], None], str]:
    """How to fill a folder with the model, and its revision ('' takes the content digest)."""
    if model_id in rules.BUILT_MODELS:
        from tuneline.engines.tiny_qwen2 import write_model

        def told(step: int, of: int, loss: float) -> None:
            log.event("progress", task="stage_model", step=step, of=of, loss=loss)

        def make(folder: Path) -> None:
            write_model(folder, seed, told)

        return make, ""
    if is_folder(model_id):
        _check_model(Path(model_id), model_id)  # before a large folder is copied
        return staging.copy_folder(model_id), ""
    commit = hub.resolve_commit(model_id, model_revision, kind="model")
    return hub.download(model_id, commit, kind="model"), commit


def _check_model(folder: Path, model_id: str) -> None:
    config = folder / "config.json"
    if not config.is_file() or not folders.entries(open_tree(folder, trusted=True)):
        raise StagingError(
            f"{model_id} is no Hugging Face model",
            asked="config.json, and model.safetensors or its index with every shard",
            found=", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "an empty folder",
            next_move="name a folder or repository that holds both; a .bin model must be saved again as safetensors first",
        )
    try:
        fault = "" if isinstance(json.loads(config.read_bytes()), dict) else "no JSON object"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault:
        raise StagingError(f"the config.json of {model_id} cannot be read", found=fault, next_move="download or save the model again")
