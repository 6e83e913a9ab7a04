"""What launch and train share: the staged inputs of a training, proved intact, and the record of what it is."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.core.clock import SYSTEM, Clock, utc
from tuneline.core.errors import StoreError
from tuneline.engines.base import Engine, training_key
from tuneline.engines.registry import get_engine
from tuneline.gcp.documents import Documents
from tuneline.tasks.context import Artifact, Taken, Task
from tuneline.tasks.staging import require_intact, require_whole

#: Framework versions that a checkpoint's record names.
FRAMEWORKS = ("torch", "transformers", "trl", "ray", "accelerate", "tuneline")


@dataclass(frozen=True)
class Staged:
    """The inputs of a training; `code` has uri and digest '' where there is no user code."""

    base: Taken
    dataset: Taken
    code: Taken


def take_staged(task: Task, model: Artifact, dataset: Artifact, code: Artifact) -> Staged:
    """Record the staged inputs and prove that they are what was staged: a folder's bytes, a bucket's manifest with every size.

    Raises:
        LineageError: If something is missing or differs: better now than after GPUs were bought.
    """
    staged = Staged(task.take("model", model), task.take("dataset", dataset), task.take("code", code))
    for taken, what in ((staged.base, "base model"), (staged.dataset, "data set"), (staged.code, "user code")):
        if taken.digest or what != "user code":
            if task.site:
                require_whole(task.documents, taken.uri, taken.digest, f"the staged {what}")
            else:
                require_intact(taken.folder, taken.digest, f"the staged {what}")
    return staged


def key_of(spec: RunSpec, engine: Engine, staged: Staged) -> str:
    """The training key of this spec on these inputs, in the image that it names or on this computer."""
    return training_key(
        spec,
        engine,
        base_digest=staged.base.digest,
        data_digest=staged.dataset.digest,
        code_digest=staged.code.digest,
        image=spec.gpu_image or f"local:python-{platform.python_version()}",
    )


def describe(spec: RunSpec, key: str, staged: Staged, *, clock: Clock = SYSTEM) -> dict[str, Any]:
    """What a training is, for the lineage of everything that comes of it."""
    inputs = {
        name: {"uri": taken.uri, "digest": taken.digest}
        for name, taken in (("base", staged.base), ("dataset", staged.dataset), ("code", staged.code))
    }
    return {
        "training_key": key,
        "parameters": {**spec.subset("train_", "model_", "data_"), "gpu_workers": spec.gpu_workers},
        **inputs,
        "engine": get_engine(spec.train_engine).code_digest(),
        "hardware": _hardware(spec),
        "versions": {name: found for name in FRAMEWORKS if (found := _version(name))},
        "started": utc(clock.now()),
    }


def write_description(documents: Documents, path: str, description: dict[str, Any]) -> None:
    """`training.json` of a training key: by its first run, unchanged by later ones.

    Raises:
        StoreError: If the one that is there is damaged: better now than when training has ended.
    """
    if documents.create(path, description):
        return
    standing = documents.read(path)
    if not isinstance(standing, dict) or standing.get("training_key") != description["training_key"]:
        raise StoreError(
            f"{path} does not describe this training",
            asked=description["training_key"],
            found=str(standing)[:200],
            next_move="restore it from a copy, or move it away: it is written again",
        )


def _hardware(spec: RunSpec) -> str:
    if spec.infra_platform == "local":
        return f"{platform.machine()}, {os.cpu_count()} CPUs, {spec.gpu_workers} workers"
    return f"{spec.gpu_nodes} x {spec.gpu_machine} in {spec.infra_zone}" if spec.gpu_machine else f"{spec.gpu_workers} CPU workers"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
