"""Files that are whole or absent: atomic writes, create-only files, folders published by one rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import StoreError

#: Seconds for which a scratch folder that nothing was written to stays, also when its process is gone.
SCRATCH_SECONDS = 3600

_SCRATCH = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,7})-[0-9a-f]{8}\.tmp")


def fsync_path(path: Path) -> None:
    """Make a folder's renames, or a file's bytes, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        _write_synced(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON with sorted keys and a final newline."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def create_only(path: Path, data: bytes) -> bool:
    """Create `path` with `data` unless it exists; whole from its first instant.

    Returns:
        True if this call created it, False if it was there already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        _write_synced(temporary, data)
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: If there is none.
        StoreError: If it holds anything else.
    """
    data = path.read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is no JSON", found=str(error), next_move="restore it from a copy, or move it away") from error


def make_dir(folder: Path) -> None:
    """Make a folder and those above it; one that is there stays.

    Raises:
        StoreError: If something else is in the way, or the disk refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            "a folder cannot be made",
            asked=str(folder),
            found=f"{error.filename}: {error.strerror}",
            next_move="move away what is there, or give another store",
        ) from error


@contextlib.contextmanager
def scratch_dir(parent: Path, name: str = "scratch", clock: Clock = SYSTEM) -> Iterator[Path]:
    """A fresh folder in `parent` that is gone when the block ends, unless it was published.

    What killed processes of this host left in `parent` more than SCRATCH_SECONDS ago is removed first.

    Raises:
        StoreError: If none can be made there.
    """
    folder = parent / f".{name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    _sweep_scratch(parent, clock.now())
    make_dir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _host() -> str:
    """8 hex characters of this host's name: stores are shared, and a process id says nothing on another host."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _sweep_scratch(parent: Path, now: float) -> None:
    for folder in parent.glob(".*.tmp"):
        named = _SCRATCH.fullmatch(folder.name)
        if named is None or named["host"] != _host() or _is_running(int(named["pid"])) or folder.is_symlink():
            continue
        # Another process may be removing the same folder.
        with contextlib.suppress(OSError):
            if now - max(path.lstat().st_mtime for path in (folder, *folder.rglob("*"))) > SCRATCH_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    """Whether a process has this id: perhaps another one than had it before."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def publish(folder: Path, final: Path) -> bool:
    """Make `folder` durable and give it its final name by one rename (same file system).

    Returns:
        True if it is there now by this call; False if `final` existed (another writer was first) and stays as it was.
    """
    for path in [*folder.rglob("*"), folder]:
        fsync_path(path)
    try:
        os.rename(folder, final)
    except OSError:
        if not final.is_dir():
            raise
        return False
    fsync_path(final.parent)
    return True


@contextlib.contextmanager
def publish_dir(final: Path) -> Iterator[Path]:
    """A fresh folder beside `final` that is published as `final` when the block ends without an error."""
    with scratch_dir(final.parent, final.name) as folder:
        yield folder
        publish(folder, final)
