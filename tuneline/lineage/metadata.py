"""The flat `lineage_*` keys that every artifact carries, in every store and in Kubeflow's own metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuneline.core.errors import LineageError
from tuneline.core.names import canonical_json, sha256_text

#: Version of the keys.
SCHEMA = "1"

#: Longest metadata of one artifact, in bytes of its JSON: far below Vertex's limit, and below what a search shows.
METADATA_BYTES = 4096


#: Key of a sidecar's sha256, and of those of sidecars that later executions wrote to the same place after its folder was gone.
SIDECAR_KEY, LATER_SIDECARS_KEY = "lineage_manifest_sha256", "lineage_manifest_sha256_later"

#: How many of the later ones are kept, the newest.
LATER_SIDECARS = 16


def sidecars(metadata: Mapping[str, str]) -> list[str]:
    """The sha256 of every sidecar that an execution wrote for an artifact; the first first, then the newest."""
    later = metadata.get(LATER_SIDECARS_KEY, "").split(", ")
    return [value for value in (metadata.get(SIDECAR_KEY, ""), *later) if value]


def with_sidecar(metadata: Mapping[str, str], sha256: str) -> dict[str, str]:
    """Metadata that accept one more sidecar."""
    known = sidecars(metadata)
    if sha256 in known:
        return dict(metadata)
    if SIDECAR_KEY not in metadata:
        return {**metadata, SIDECAR_KEY: sha256}
    return {**metadata, LATER_SIDECARS_KEY: ", ".join([sha256, *known[1:]][:LATER_SIDECARS])}


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that a store could not search or would change.

    Raises:
        LineageError: A key outside `lineage_*`, a value that is no text, or more than METADATA_BYTES in all.
    """
    for key, value in metadata.items():
        if not key.startswith("lineage_") or not isinstance(value, str):
            raise LineageError(
                "lineage metadata are flat text under lineage_ keys",
                found=f"{key}={value!r} ({type(value).__name__})",
                next_move="write numbers as text: stores hand them on as floats",
            )
    size = len(canonical_json(dict(metadata)).encode())
    if size > METADATA_BYTES:
        raise LineageError(
            f"lineage metadata of {size} bytes", choices=(f"at most {METADATA_BYTES} bytes",), next_move="put long values into the sidecar"
        )


def lineage_metadata(
    *,
    kind: str,
    digest: str,
    run_id: str = "",
    task: str = "",
    attempt: int | str = "",
    manifest: str = "",
    manifest_sha256: str = "",
    parameters: Mapping[str, Any] | None = None,
    spec_sha256: str = "",
    base: str = "",
    base_sha256: str = "",
    dataset_sha256: str | Sequence[str] = "",
    parent_sha256: str = "",
    code: str = "",
    image: str = "",
    compute: str = "",
    step: int | str = "",
) -> dict[str, str]:
    """The flat `lineage_*` keys of an artifact; what is not given is left out. They repeat edges on purpose: they survive a broken one.

    Args:
        run_id, task, attempt, parameters: The execution that made it, and what it was given.
        manifest: Uri of the sidecar; manifest_sha256: digest of the sidecar's own bytes.
        spec_sha256: Digest of the compiled pipeline.
        base: Base model as repo@revision; base_sha256, dataset_sha256, parent_sha256: content digests (several data sets: numbered keys).
        code: repo@commit; image: with its digest; compute: cluster and accelerators x count; step: training step.

    Raises:
        LineageError: More than METADATA_BYTES.
    """
    datasets = [dataset_sha256] if isinstance(dataset_sha256, str) else list(dataset_sha256)
    values: dict[str, object] = {
        "schema": SCHEMA,
        "kind": kind,
        "digest": digest,
        "manifest": manifest,
        "manifest_sha256": manifest_sha256,
        "run": run_id,
        "task": task,
        "attempt": attempt,
        "params_sha256": params_sha256(parameters) if parameters else "",
        "spec_sha256": spec_sha256,
        "base": base,
        "base_sha256": base_sha256,
        **{f"dataset_sha256{f'_{number}' if number > 1 else ''}": value for number, value in enumerate(datasets, 1)},
        "parent_sha256": parent_sha256,
        "code": code,
        "image": image,
        "compute": compute,
        "step": step,
    }
    metadata = {f"lineage_{key}": str(value) for key, value in values.items() if value != ""}
    check_metadata(metadata)
    return metadata


def params_sha256(parameters: Mapping[str, Any]) -> str:
    """Digest of parameters: sha256 of their canonical JSON."""
    return sha256_text(canonical_json(dict(parameters)))
