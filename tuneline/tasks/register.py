"""The model in the registry of this store."""

from __future__ import annotations

from tuneline.core.clock import SYSTEM
from tuneline.lineage import model as lineage
from tuneline.tasks.context import Artifact, running_spec
from tuneline.tasks.staging import require_intact


def run(spec_json: str, job_name: str, hf_model: Artifact, metrics: Artifact, registered: Artifact) -> str:
    """Register the converted model; the same bytes again give the same version. Returns NAME@VERSION.

    Raises:
        LineageError: If the folder has no sidecar, or holds other bytes than it says.
    """
    with running_spec("register", spec_json, job_name) as (task, spec):
        model = task.take("hf_model", hf_model)
        require_intact(model.folder, model.digest, "the converted model")
        scores = {f"lineage_{name}": f"{float(metrics.metadata[name]):.6f}" for name in ("base_score", "trained_score")}
        weights = lineage.Artifact("hf", model.uri, model.digest, model.metadata)
        version = task.lineage.register(spec.output_model_name, weights, {"lineage_run": task.run_id, **scores}, at=SYSTEM.now())
        name = f"{version.name}@{version.version}"
        task.emit("registered", registered, version.uri, kind="registered", digest=model.digest, parent_sha256=model.digest)
        registered.metadata["resourceName"] = name
        task.notes.update(name=name, model=model.uri)
        return name
