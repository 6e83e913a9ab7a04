"""Files of a checkpoint folder, opened once, read at offsets, never outside the folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath
from types import TracebackType

from tuneline.checkpoints.disk import ALIGNMENT, Bytes, Residency, Room, round_up, takes_direct
from tuneline.checkpoints.refusal import refused

#: Shorter reads go through the page cache: its read-ahead serves neighbours.
_DIRECT_FROM = 64 << 10


class FileBlob:
    """A regular file, read with pread: from the page cache what it holds, long cold ranges past it."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if `path` is missing, not a regular file or cannot be opened."""
        self._name = str(path)
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            hint = "raise the limit of open files (ulimit -n)" if error.errno == errno.EMFILE else ""
            raise refused(path, f"cannot be opened: {error.strerror}", next_move=hint) from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise refused(path, "is not a regular file")
        self._size = status.st_size
        self._modified = status.st_mtime_ns
        self._direct: int | None = None
        self._residency: Residency | None = None
        if status.st_size >= 16 * _DIRECT_FROM and takes_direct(path):
            try:
                self._direct = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECT)
                self._residency = Residency(self._descriptor, status.st_size)
            except OSError:
                self._direct = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._size

    @property
    def version(self) -> str:
        return f"{self._size}-{self._modified}"

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` from byte `offset` on."""
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._descriptor, [out[done:]], offset + done)
            except OSError as error:
                raise refused(self._name, f"cannot be read at byte {offset + done}: {error.strerror}") from error
            if count == 0:
                raise refused(self._name, f"ends at byte {offset + done}, {len(out) - done} bytes too early")
            done += count

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from byte `offset` on."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def expect(self, offset: int, length: int) -> None:
        """Have the kernel read ahead, unless these bytes will be read past the page cache or are in it."""
        if self._residency is None and length >= _DIRECT_FROM and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def fetch(self, offset: int, length: int, room: Room) -> Bytes:
        """`length` bytes from byte `offset` on, in `room`."""
        direct, residency = self._direct, self._residency
        if direct is not None and residency is not None and length >= _DIRECT_FROM and not residency.holds(offset, length):
            first = offset // ALIGNMENT * ALIGNMENT
            memory = room.take(round_up(offset + length - first))
            try:
                count = os.preadv(direct, [memory.data], first)
            except OSError:  # the device wants larger blocks, or the file system does not do this after all
                self._residency = None
                count = 0
            if count >= offset + length - first:
                return memory[offset - first : offset - first + length]
        memory = room.take(length)
        self.read_into(offset, memory.data)
        return memory

    def close(self) -> None:
        self._residency = None
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None
        os.close(self._descriptor)


class Folder:
    """A folder on a disk; a context manager that closes its files."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        """
        Args:
            trusted: Links may lead out of it, as in the cache of a hub.
        """
        self.path = path
        self._root = None if trusted else path.resolve()
        self._blobs: dict[str, FileBlob] = {}
        self._listed: dict[str, tuple[dict[str, int], list[str]]] = {}

    @property
    def name(self) -> str:
        return str(self.path)

    def files(self, under: str) -> dict[str, int]:
        return self._list(under)[0]

    def folders(self, under: str) -> list[str]:
        return self._list(under)[1]

    def _list(self, under: str) -> tuple[dict[str, int], list[str]]:
        if under not in self._listed:
            files: dict[str, int] = {}
            folders = []
            try:
                with os.scandir(self.path / under) as entries:
                    for entry in sorted(entries, key=lambda entry: entry.name):
                        if entry.is_dir():
                            folders.append(entry.name)
                        elif entry.is_file():
                            files[entry.name] = entry.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                raise refused(self.path / under, f"cannot be listed: {error.strerror}") from error
            self._listed[under] = (files, folders)
        return self._listed[under]

    def open(self, relative: str) -> FileBlob:
        """The file at `relative`.

        Raises:
            CheckpointError: `relative` is absolute, has `..`, leads out of the folder through a link,
                or is not a regular file that can be read.
        """
        blob = self._blobs.get(relative)
        if blob is None:
            blob = self._blobs[relative] = FileBlob(self._inside(relative))
        return blob

    def _inside(self, relative: str) -> Path:
        pure = PurePosixPath(relative)
        unsafe = not relative or len(relative) > 1024 or not relative.isprintable() or "\\" in relative
        if unsafe or pure.is_absolute() or ".." in pure.parts or str(pure) != relative or relative == ".":
            raise refused(self.path, "names a file outside itself", found=ascii(relative[:200]))
        path = self.path / relative
        if self._root is None:
            return path
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError) as error:
            raise refused(path, f"cannot be resolved: {error}") from error
        if not resolved.is_relative_to(self._root):
            raise refused(path, "is a link that leads out of the checkpoint")
        return path

    def close(self) -> None:
        for blob in self._blobs.values():
            blob.close()
        self._blobs.clear()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
