"""A folder as a listing, so that checkpoints are judged by the same functions in a folder and in a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path


def folder(root: str) -> tuple[Mapping[str, int], Callable[[str], str]]:
    """The files below `root` (path with `/` to bytes) and a reader of one of them; no files where there is no folder.

    A link is not followed: it stands for a checkpoint of another attempt.
    """
    base = Path(root)
    files = {}
    for where, folders, names in os.walk(base):
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            if not path.is_symlink():
                files[path.relative_to(base).as_posix()] = path.stat().st_size

    def read(path: str) -> str:
        return (base / path).read_text(encoding="utf-8", errors="replace")

    return files, read
