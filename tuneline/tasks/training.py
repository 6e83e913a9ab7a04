"""What launch and train share: the staged inputs of a training, proved intact, and the record of what it is."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.core.clock import SYSTEM, utc
from tuneline.core.files import create_only
from tuneline.core.names import canonical_json
from tuneline.engines.base import Engine, training_key
from tuneline.engines.registry import get_engine
from tuneline.tasks.context import Artifact, Taken, Task
from tuneline.tasks.staging import require_intact

#: Framework versions that a checkpoint's record names.
FRAMEWORKS = ("torch", "transformers", "trl", "ray", "accelerate", "tuneline")


@dataclass(frozen=True)
class Staged:
    """The inputs of a training; `code` has uri and digest '' where there is no user code."""

    base: Taken
    dataset: Taken
    code: Taken


def take_staged(task: Task, model: Artifact, dataset: Artifact, code: Artifact) -> Staged:
    """Record the staged inputs and prove that their bytes are those that were staged.

    Raises:
        LineageError: If a folder is missing or holds other bytes: better now than after GPUs were bought.
    """
    staged = Staged(task.take("model", model), task.take("dataset", dataset), task.take("code", code))
    require_intact(staged.base.folder, staged.base.digest, "the staged base model")
    require_intact(staged.dataset.folder, staged.dataset.digest, "the staged data set")
    if staged.code.digest:
        require_intact(staged.code.folder, staged.code.digest, "the staged user code")
    return staged


def key_of(spec: RunSpec, engine: Engine, staged: Staged) -> str:
    """The training key of this spec on these inputs, on this computer."""
    return training_key(
        spec,
        engine,
        base_digest=staged.base.digest,
        data_digest=staged.dataset.digest,
        code_digest=staged.code.digest,
        image=f"local:python-{platform.python_version()}",
    )


def describe(spec: RunSpec, key: str, staged: Staged) -> dict[str, Any]:
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
        "hardware": f"{platform.machine()}, {os.cpu_count()} CPUs, {spec.gpu_workers} workers",
        "versions": {name: found for name in FRAMEWORKS if (found := _version(name))},
        "started": utc(SYSTEM.now()),
    }


def write_description(folder: str, description: dict[str, Any]) -> None:
    """`training.json` of a training key: by its first run, unchanged by later ones."""
    create_only(Path(folder) / "training.json", (canonical_json(description) + "\n").encode())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
