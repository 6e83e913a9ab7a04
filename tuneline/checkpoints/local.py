"""A folder on a disk as the place where conversions go: built in a work folder that a killed conversion leaves and the next goes on from.

`.convert-<fingerprint>.tmp/` holds `folder/` (what will be published), `state/` (digests of finished shards) and `lock`, which a living
conversion holds. The rename of `folder/` to its final name is the moment of publication.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tuneline.checkpoints.files import FileSink, StreamSink, open_file
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import Shard
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.files import make_dir, publish, write_json
from tuneline.core.log import get_logger
from tuneline.lineage.digests import SIDECAR, FileDigest

Finish = Callable[[Path, tuple[FileDigest, ...]], None]

#: What a killed conversion left is kept so long for it to be gone on from.
KEEP_SECONDS = 24 * 3600

_log = get_logger("checkpoints")


class LocalWork:
    """One conversion on its way into `parent`."""

    def __init__(self, parent: Path, fingerprint: str, clock: Clock = SYSTEM) -> None:
        """
        Args:
            fingerprint: The same for conversions that write the same bytes.
        """
        self._parent = parent
        make_dir(parent)
        self._remove_stale(clock.now())
        path = parent / f".convert-{fingerprint[:16]}.tmp"
        lock = _lock(path)
        if lock is None:  # another process is at the same conversion; the one that ends second finds the folder there
            path = parent / f".convert-{fingerprint[:16]}-{os.getpid()}.tmp"
            shutil.rmtree(path, ignore_errors=True)
            lock = _lock(path)
        if lock is None:
            raise refused(path, "cannot be locked: another conversion is using it")
        self._path, self._lock = path, lock
        self._folder = path / "folder"
        self._state = path / "state"
        self._folder.mkdir(exist_ok=True)
        self._state.mkdir(exist_ok=True)
        self._started = False

    def _remove_stale(self, now: float) -> None:
        """Remove what killed conversions left long ago."""
        for path in self._parent.glob(".convert-*.tmp"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > KEEP_SECONDS and (lock := _lock(path)) is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)
                    _log.info("removed %s, which a conversion had left", path)

    def finished(self, shard: Shard) -> FileDigest | None:
        """The digest of a shard that an earlier process finished here, None if it is not there as it was left."""
        path = self._folder / shard.file
        try:
            record = json.loads((self._state / f"{shard.file}.json").read_bytes())
            status = path.stat()
            if (record["size"], record["modified"], record["size"]) != (status.st_size, status.st_mtime_ns, shard.nbytes):
                return None
            return FileDigest(shard.file, str(record["sha256"]), shard.nbytes)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def open(self, shard: Shard) -> FileSink | StreamSink:
        """Begin a shard anew."""
        path = self._folder / shard.file
        path.unlink(missing_ok=True)
        return open_file(path, shard.nbytes)

    def done(self, digest: FileDigest) -> None:
        """A shard is whole and on the disk."""
        status = (self._folder / digest.path).stat()
        write_json(self._state / f"{digest.path}.json", {"sha256": digest.sha256, "size": status.st_size, "modified": status.st_mtime_ns})
        self._started = True

    def put(self, relative: str, content: bytes) -> FileDigest:
        """Write a small file."""
        path = self._folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        return FileDigest(relative, hashlib.sha256(content).hexdigest(), len(content))

    def publish(self, digest: str, files: tuple[FileDigest, ...], finish: Finish | None) -> str:
        """Give the folder its name, `<parent>/<digest>`; one that is there already is verified. Returns its path.

        Raises:
            CheckpointError: The folder that is there has other bytes.
        """
        final = self._parent / digest
        if final.exists():
            check_published(final, files)
        else:
            expected = {file.path for file in files}
            for path in sorted(self._folder.rglob("*"), reverse=True):
                if path.is_file() and path.relative_to(self._folder).as_posix() not in expected:
                    path.unlink()  # a torn lineage.json of a killed conversion
            if finish is not None:
                finish(self._folder, files)
            if not publish(self._folder, final):
                check_published(final, files)
        self.discard()
        return str(final)

    def discard(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._release()

    def keep(self) -> None:
        """Leave finished shards for a later conversion; nothing if there are none."""
        if not self._started and not any(self._state.iterdir()):
            self.discard()
        else:
            _log.warning("finished shards stay in %s; run the same conversion again to go on", self._path)
            self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of the work folder `path`, made if need be; None if a living process has it."""
    path.mkdir(exist_ok=True)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have removed the folder in between.
        if os.fstat(descriptor).st_ino == (path / "lock").stat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def check_published(final: Path, files: tuple[FileDigest, ...]) -> None:
    """Raises CheckpointError unless the folder `final` holds exactly `files`, and lineage.json where it was written."""
    there = {path.relative_to(final).as_posix() for path in final.rglob("*") if path.is_file()} - {SIDECAR}
    faults = [f"{path} does not belong there" for path in sorted(there - {file.path for file in files})]
    for file in files:
        path = final / file.path
        if file.path not in there:
            faults.append(f"{file.path} is missing")
        elif path.stat().st_size != file.size:
            faults.append(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")
        else:
            with open(path, "rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != file.sha256:
                    faults.append(f"{file.path} has other bytes than its digest says")
    if faults:
        raise refused(
            final,
            "this model was converted before, and the folder was changed since",
            found="; ".join(faults),
            next_move="find out who changed it, then remove it and convert again",
        )
