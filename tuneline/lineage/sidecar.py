"""`lineage.json` beside a checkpoint, model or data set: where it came from and what its files are.

Written last and never again: its presence means that the folder is digested. A folder that was only checked quickly (no sha256) has
`lineage.quick.json` of the same form. What is read back must be, byte for byte, what `statement` writes for its content: an edited, torn
or foreign file is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from tuneline.core.errors import LineageError
from tuneline.core.files import create_only
from tuneline.lineage.digests import QUICK_SIDECAR, SIDECAR
from tuneline.lineage.statement import Dependency, Statement, Subject, broken, build_statement, parse

__all__ = ["Dependency", "Statement", "Subject", "build_statement", "find", "read", "write"]

#: Largest sidecar that is read, in bytes.
MAX_BYTES = 64 << 20


def write(folder: Path, statement: Statement) -> Statement:
    """Write the sidecar into a folder that nothing changes any more, unless it is there.

    Returns:
        The statement that stands in the folder: this one, or an earlier attempt's over the same files. Metadata are taken from it.

    Raises:
        LineageError: A sidecar over other files is there.
    """
    if statement.file_name == QUICK_SIDECAR and (folder / SIDECAR).exists():
        return read(folder)
    if create_only(folder / statement.file_name, statement.to_json()):
        return statement
    known = read(folder)
    if known.subjects != statement.subjects:
        raise LineageError(
            "the folder was digested before, and its files were other ones",
            asked=f"{folder}: content digest {statement.digest or '(quick)'}",
            found=f"content digest {known.digest or '(quick)'} by {known.run_id}/{known.task}/{known.attempt}",
            next_move="audit the folder; write new content to a new folder",
        )
    return known


def find(folder: Path) -> Path | None:
    """Where a folder's sidecar is: the full one before the quick one."""
    return next((folder / name for name in (SIDECAR, QUICK_SIDECAR) if os.path.lexists(folder / name)), None)


def read(folder: Path) -> Statement:
    """The sidecar of a folder.

    Raises:
        LineageError: It is missing, broken, or not Tuneline's, with what is wrong.
    """
    path = find(folder)
    if path is None:
        raise LineageError(f"{folder} has no {SIDECAR}", next_move="restore it from a copy; a folder without it cannot be verified")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise LineageError(f"{path} cannot be read: {error.strerror}", next_move="restore it from a copy") from error
    if size > MAX_BYTES:
        raise broken(str(path), f"{size} bytes, more than any sidecar has")
    statement = parse(data, str(path))
    if statement.file_name != path.name:
        raise broken(str(path), "a quick sidecar in place of the full one")
    return statement
