"""The child of `tuneline run`: executes a compiled pipeline with kfp.local. Ends the session if its parent dies."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path

from tuneline.cli.session import Session, interrupt


def _end_with_parent(session: Session, root: str) -> None:
    while os.read(0, 1):  # the parent holds the other end and never writes; it closes when the parent is gone
        continue
    interrupt(session, root, None)
    os._exit(130)


def main() -> int:
    """argv: compiled YAML, session folder, temporary folder, store root, JSON of the arguments."""
    compiled, folder, temporary, root, arguments = sys.argv[1:6]
    session = Session(Path(folder).name, Path(folder), Path(temporary))
    threading.Thread(target=_end_with_parent, args=(session, root), daemon=True).start()
    warnings.filterwarnings("ignore")
    from kfp import components, local

    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(session.folder / "kfp"),
        enable_caching=True,
        cache_root=str(Path(root) / "cache"),
    )
    pipeline = components.load_component_from_file(compiled)
    try:
        pipeline(**json.loads(arguments))
    except RuntimeError as error:  # kfp.local raises nothing finer when a task failed
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
