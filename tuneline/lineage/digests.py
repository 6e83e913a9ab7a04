"""Digests of folders: sha256 of every file, and one content digest over them that is the identity of a folder's bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

from tuneline.core.errors import LineageError

#: The sidecar of a digested folder: excluded from the digest that it holds.
SIDECAR = "lineage.json"
#: The sidecar of a folder that was only checked quickly; once the folder is digested, a file like any other.
QUICK_SIDECAR = "lineage.quick.json"

_CHUNK = 1 << 20
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class FileDigest:
    """One file: path relative to its folder with `/`, sha256 in 64 hex characters, size in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class QuickFile:
    """One file as a bucket lists it: size in bytes and crc32c in 8 hex characters. Finds damage, not forgery."""

    path: str
    size: int
    crc32c: str


def content_digest(files: Iterable[FileDigest]) -> str:
    """sha256 over the sorted lines `"{sha256}  {path}\\n"`, 64 hex characters: equal content has equal digests wherever it lies."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def list_files(folder: Path, exclude: Iterable[str] = (SIDECAR,)) -> dict[str, int]:
    """Path relative to `folder` and size in bytes of every file below it, sorted; empty folders do not count.

    Args:
        exclude: Relative paths left out.

    Raises:
        LineageError: No such folder; a link that leads out of it, to a folder or nowhere; a socket, pipe or device; an unreadable folder;
            a name that is not UTF-8 or holds a line break.
    """
    left_out = set(exclude)
    if not folder.is_dir():
        raise LineageError("nothing to digest: no such folder", asked=str(folder), next_move="check the path")
    try:
        found = {path: size for path, size in _walk(folder, folder.resolve(), "") if path not in left_out}
    except OSError as error:
        raise LineageError(f"a folder cannot be listed: {error}", asked=str(folder), next_move="check its permissions") from error
    return dict(sorted(found.items()))


def _walk(folder: Path, root: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            if not _is_plain(entry.name):
                raise _odd(repr(path), "its name is not UTF-8 or holds a line break", "rename it")
            if entry.is_symlink():
                target = Path(entry.path).resolve()
                if not target.is_relative_to(root):
                    raise _odd(path, f"a link that leads out of the folder, to {target}", "copy the file in place of the link")
                if not target.is_file():
                    raise _odd(path, f"a link to {target}, which is no file", "copy the files in place of the link")
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), root, path + "/")
                continue
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                raise _odd(path, "a socket, pipe or device", "remove it")
            yield path, status.st_size


def _is_plain(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return not any(character in name for character in "\n\r\0")


def _odd(path: str, found: str, next_move: str) -> LineageError:
    return LineageError(f"{path} cannot be part of a digest", found=found, next_move=next_move)


def digest_folder(folder: Path, exclude: Iterable[str] = (SIDECAR,)) -> tuple[FileDigest, ...]:
    """Every file below `folder` with its sha256, sorted by path; files are read by several threads.

    Args:
        exclude: Relative paths left out: the sidecar, which holds these digests.

    Raises:
        LineageError: As `list_files`; also a file that cannot be read or changes while it is read.
    """
    return digest_files(folder, list_files(folder, exclude))


def quick_files(folder: Path, paths: Iterable[str] | None = None) -> tuple[QuickFile, ...]:
    """Size and crc32c of the files at `paths` below `folder`, in that order; of every file but the sidecars where not given.

    Raises:
        LineageError: As `digest_folder`.
    """

    def quick(path: str) -> QuickFile:
        crc32c, size = _read(folder / path, _crc32c)
        return QuickFile(path, size, crc32c)

    return _each(list_files(folder, (SIDECAR, QUICK_SIDECAR)) if paths is None else paths, quick)


def digest_files(folder: Path, paths: Iterable[str]) -> tuple[FileDigest, ...]:
    """sha256 of the files at `paths` below `folder`, in that order.

    Raises:
        LineageError: A file that cannot be read or changes while it is read.
    """

    def digest(path: str) -> FileDigest:
        return digest_file(folder / path, path)

    return _each(paths, digest)


def digest_file(file: Path, path: str | None = None) -> FileDigest:
    """One file's digest under the name `path` (its own name where not given).

    Raises:
        LineageError: It cannot be read or changes while it is read.
    """
    sha256, size = _read(file, lambda handle: hashlib.file_digest(handle, "sha256").hexdigest())
    return FileDigest(path or file.name, sha256, size)


def _each(paths: Iterable[str], work: Callable[[str], _Row]) -> tuple[_Row, ...]:
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        return tuple(pool.map(work, paths))


def _read(file: Path, digest: Callable[[FileIO], str]) -> tuple[str, int]:
    """The digest and size of a file that stands still meanwhile."""
    try:
        with open(file, "rb", buffering=0) as handle:
            before = os.fstat(handle.fileno())
            value = digest(handle)
            after = os.fstat(handle.fileno())
    except OSError as error:
        raise LineageError(f"{file} cannot be read: {error.strerror}", next_move="check its permissions and the disk") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise LineageError(
            f"{file} changes while it is digested",
            found=f"{before.st_size} bytes, then {after.st_size}",
            next_move="wait until nothing writes to the folder, then digest it again",
        )
    return value, after.st_size


def _crc32c(handle: FileIO) -> str:
    import google_crc32c

    value = 0
    while chunk := handle.read(_CHUNK):
        value = google_crc32c.extend(value, chunk)
    return f"{value:08x}"
