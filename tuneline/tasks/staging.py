"""Staging: into the store under a temporary name, digested, with its sidecar, published by one rename."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tuneline.core.errors import LineageError, StagingError
from tuneline.core.files import publish, scratch_dir
from tuneline.gcp.documents import Documents
from tuneline.lineage import sidecar
from tuneline.lineage.digests import SIDECAR, content_digest, digest_folder
from tuneline.lineage.statement import parse
from tuneline.tasks.context import Task

#: Hidden files, caches and VCS folders are no part of a model, data set or code folder.
IGNORED = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "lineage.json")


def stage(
    task: Task,
    final: Callable[[str], str],
    fill: Callable[[Path], None],
    *,
    kind: str,
    origin: Mapping[str, str],
) -> tuple[str, str]:
    """Stage a folder.

    Args:
        final: From content digest to the folder's path in the store.
        fill: Writes the content into an empty folder.
        kind: base | dataset | code.
        origin: Where it comes from, as flat strings: `id`, `revision`, `licence`, ...

    Returns:
        The staged folder and its content digest. A folder of the same digest that is there already is verified and kept.

    Raises:
        StagingError: If `fill` wrote nothing.
        LineageError: If the folder that is there already does not hold what its name says.
    """
    if task.store.root.startswith("gs://"):
        # Before GPUs: clusters stand up and go away on GKE, but nothing trains on them yet.
        raise StagingError(
            "a run cannot be staged into a bucket by this version",
            asked=task.store.root,
            choices=("infra_platform=local with a folder",),
            next_move="train on this computer; on GKE this version only provisions and tears down",
        )
    with scratch_dir(Path(final("0" * 64)).parent) as content:
        fill(content)
        files = digest_folder(content)
        if not files:
            raise StagingError(f"{task.name} found no file to stage", asked=str(dict(origin)), next_move="name a folder that holds files")
        digest = content_digest(files)
        folder = Path(final(digest))
        statement = task.record.statement(kind=kind, uri=str(folder), files=files, details=origin)
        if not folder.exists():
            task.record.seal(statement)
        sidecar.write(content, statement)
        if not publish(content, folder):
            require_intact(folder, digest, f"the {kind} that is staged already")
    return str(folder), digest


def require_intact(folder: Path, digest: str, what: str) -> None:
    """Prove that a folder of the store has its sidecar and holds exactly the content of `digest`.

    Raises:
        LineageError: If it is not so.
    """
    if not (folder / SIDECAR).is_file():
        found = f"no {SIDECAR} in {folder}"
    elif (actual := content_digest(digest_folder(folder))) == digest:
        return
    else:
        found = f"content digest {actual} in {folder}"
    raise LineageError(
        f"{what} is not what was recorded",
        asked=f"content digest {digest}",
        found=found,
        next_move=f"`tuneline audit {folder}` names the files; move the folder away and run again with a new ops_rerun_token",
    )


def source_files(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Every file of a user's folder that staging copies, in order; symbolic links are followed.

    Args:
        above: Real paths of the folders that the walk is in.

    Raises:
        StagingError: At a folder that cannot be read, a link to nothing or to a folder that holds it, a pipe or a device.
    """
    real = os.path.realpath(folder)
    if real in above:
        raise StagingError(f"{folder} is a link to a folder that holds it", found=real, next_move="remove the link")
    try:
        names = os.listdir(folder)
        for name in sorted(set(names) - IGNORED(str(folder), names)):
            path = folder / name
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                yield from source_files(path, above | {real})
            elif stat.S_ISREG(mode):
                yield path
            else:
                raise StagingError(f"{path} is no file", next_move="remove it, or name a folder that holds files only")
    except OSError as error:
        raise StagingError(
            f"{error.filename} cannot be staged: {error.strerror}", next_move="correct or remove it, or name another folder"
        ) from error


def require_whole(documents: Documents, uri: str, digest: str, what: str) -> None:
    """Prove that a folder of a bucket has the sidecar of `digest` and holds exactly the files that this names, each of its size.

    Raises:
        LineageError: If it is not so.
    """
    data = documents.read_bytes(f"{uri}/{SIDECAR}")
    if data is None:
        found = f"no {SIDECAR} in {uri}"
    elif (statement := parse(data, f"{uri}/{SIDECAR}")).digest != digest:
        found = f"content digest {statement.digest} in {uri}"
    else:
        wanted = {subject.path: subject.size for subject in statement.subjects}
        there = {path: size for path, size in documents.sizes(uri).items() if path != SIDECAR}
        odd = sorted(path for path in wanted.keys() | there.keys() if wanted.get(path) != there.get(path))
        if not odd:
            return
        found = f"{len(odd)} files that are missing, too many or of another size: {', '.join(odd[:5])}"
    raise LineageError(
        f"{what} is not what was recorded",
        asked=f"content digest {digest}",
        found=found,
        next_move="move the folder away and run again with a new ops_rerun_token: it is staged anew",
    )


def copy_folder(source: str) -> Callable[[Path], None]:
    """A `fill` that copies a folder, less what is hidden. It raises StagingError as `source_files`, before it copies anything."""

    def fill(target: Path) -> None:
        for path in list(source_files(Path(source))):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(path, copy)
            except OSError as error:
                raise StagingError(f"{path} cannot be copied into the store: {error.strerror}", asked=str(copy)) from error

    return fill
