"""The trained checkpoint as a Hugging Face model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tuneline.checkpoints.convert import convert
from tuneline.core import log
from tuneline.core.clock import SYSTEM, utc
from tuneline.core.files import read_json
from tuneline.lineage import sidecar
from tuneline.lineage.digests import FileDigest, content_digest, digest_folder
from tuneline.lineage.metadata import SIDECAR_KEY
from tuneline.lineage.sidecar import Dependency
from tuneline.tasks.context import Artifact, Taken, Task, current_run, running

logger = log.get_logger("tasks.convert")

#: Keys of the checkpoint that its model repeats, so that they survive a broken edge.
INHERITED = ("base", "base_sha256", "dataset_sha256", "code", "image", "compute", "step")


class Converted(NamedTuple):
    """What was converted."""

    digest: str


def run(output_root: str, output_shard_mb: int, model: Artifact, checkpoint: Artifact, hf_model: Artifact) -> Converted:
    """Convert, digest and describe; the folder's name is the digest of its content.

    Raises:
        CheckpointError: If the checkpoint is not whole or cannot be trusted; nothing is left behind.
    """
    with running("convert", root=output_root, run_id=current_run(), parameters={"output_shard_mb": output_shard_mb}) as task:
        base, source = task.take("model", model), task.take("checkpoint", checkpoint)
        parent = describe_checkpoint(task, source)
        training = read_json(source.folder.parent.parent / "training.json")
        dependencies = [*_dependencies(training), Dependency("checkpoint", "checkpoint", source.uri, parent)]
        final = Path(task.store.hf(""))

        def finish(folder: Path, files: tuple[FileDigest, ...]) -> None:
            statement = task.record.statement(
                kind="hf",
                uri=str(final / content_digest(files)),
                files=files,
                dependencies=dependencies,
                parameters=training["parameters"],
                details=_details(source, training),
            )
            task.record.seal(statement)
            sidecar.write(folder, statement)

        made = convert(source.folder, final, base_dir=base.folder, max_shard_bytes=output_shard_mb * 10**6, finish=finish)
        kept = {key: source.metadata[f"lineage_{key}"] for key in INHERITED if f"lineage_{key}" in source.metadata}
        task.emit("hf_model", hf_model, str(made.folder), kind="hf", digest=made.digest, parent_sha256=parent, **kept)
        task.notes.update(uri=str(made.folder), parameters=f"{made.parameters:,}", digest=made.digest[:12])
        return Converted(made.digest)


def describe_checkpoint(task: Task, source: Taken) -> str:
    """Digest the chosen checkpoint and write its sidecar; one that is there must be over the same files. Returns its content digest."""
    training = read_json(source.folder.parent.parent / "training.json")
    files = digest_folder(source.folder)
    statement = sidecar.build_statement(
        kind="checkpoint",
        uri=source.uri,
        files=files,
        dependencies=_dependencies(training),
        parameters=training["parameters"],
        run_id=source.metadata["lineage_run"],
        task="train",
        attempt=int(source.metadata["lineage_attempt"]),
        started=training["started"],
        finished=utc(SYSTEM.now()),
        details=_details(source, training),
    )
    if sidecar.find(source.folder) is None:
        task.record.seal(statement)
    standing = sidecar.write(source.folder, statement)
    # From here on the store knows the checkpoint by its content, and its sidecar by its digest: only by the one that was sealed.
    metadata = {key: value for key, value in {**source.metadata, **standing.metadata()}.items() if key != SIDECAR_KEY}
    task.record.input("checkpoint", source.uri, kind="checkpoint", digest=standing.digest, metadata=metadata)
    return standing.digest


def _dependencies(training: dict[str, Any]) -> list[Dependency]:
    return [
        Dependency(name, name, training[name]["uri"], training[name]["digest"])
        for name in ("base", "dataset", "code")
        if training[name]["digest"]
    ]


def _details(source: Taken, training: dict[str, Any]) -> dict[str, str]:
    return {
        "training_key": training["training_key"],
        "step": source.metadata["lineage_step"],
        "hardware": training["hardware"],
        "versions": json.dumps(training["versions"], sort_keys=True),
    }
