"""The local files that shards are written into."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tuneline.checkpoints.disk import Bytes, file_system, preallocate, round_up, start_write_back, takes_direct


def open_file(path: Path, size: int) -> FileSink | StreamSink:
    """A new file of `size` bytes, written in the way that its file system likes."""
    system = file_system(path.parent)
    # gcsfuse uploads while it is written to, but only front to back; anything else makes it stage the whole file on local disk.
    return StreamSink(path) if system.startswith("fuse") else FileSink(path, size, direct=takes_direct(path.parent))


class FileSink:
    """A new file, preallocated, written in any order; past the page cache where `direct`."""

    sequential = False

    def __init__(self, path: Path, size: int, *, direct: bool) -> None:
        self._path = path
        self._size = size
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._direct = -1
        try:
            preallocate(self._descriptor, round_up(size))
            if direct:
                with contextlib.suppress(OSError):
                    self._direct = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT)
        except BaseException:
            self.abort()
            raise

    def write(self, start: int, data: Bytes) -> None:
        if self._direct >= 0 and len(data) == round_up(len(data)):
            # What fails or falls short here is written once more below, and fails there for good.
            with contextlib.suppress(OSError):
                if os.pwrite(self._direct, data.data, start) == len(data):
                    return
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data.data[done:], start + done)
        start_write_back(self._descriptor, start, len(data))

    def close(self) -> None:
        os.ftruncate(self._descriptor, self._size)
        os.fsync(self._descriptor)
        self._close()

    def abort(self) -> None:
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        for descriptor in (self._direct, self._descriptor):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


class StreamSink:
    """A new file, written front to back."""

    sequential = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, start: int, data: Bytes) -> None:
        rest = data.data
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._path.unlink(missing_ok=True)
