"""Where models, data, checkpoints and runs lie."""

from __future__ import annotations

from pathlib import Path

from tuneline.config.store import KEPT
from tuneline.core.errors import StoreError
from tuneline.tasks.context import running_spec


def run(spec_json: str, job_name: str) -> str:
    """Create the store's layout; what is there stays. Returns its root."""
    with running_spec("provision_storage", spec_json, job_name) as (task, spec):
        root = Path(spec.output_root)
        for name in (*KEPT, "runs", "leases", "lineage"):
            _make(root / name)
        task.notes["root"] = str(root)
        return str(root)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            "the store's layout cannot be made",
            asked=str(folder),
            found=str(error.strerror),
            next_move="move away what is there, or give another store",
        ) from error
