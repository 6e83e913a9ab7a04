"""Where models, data, checkpoints and runs lie."""

from __future__ import annotations

from pathlib import Path

from tuneline.config.store import KEPT
from tuneline.core.files import make_dir
from tuneline.tasks.context import running_spec


def run(spec_json: str, job_name: str) -> str:
    """Create the store's layout; what is there stays. Returns its root."""
    with running_spec("provision_storage", spec_json, job_name) as (task, spec):
        root = Path(spec.output_root)
        for name in (*KEPT, "runs", "leases", "lineage"):
            make_dir(root / name)
        task.notes["root"] = str(root)
        return str(root)
