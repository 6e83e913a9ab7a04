"""What a local disk offers beyond read and write, by way of the C library: direct I/O, what the page cache holds, early write-back.

Everything here may be missing; then reads and writes go through the page cache like anybody's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: Direct I/O wants offsets, lengths and memory in multiples of the device's block; no device has larger ones.
ALIGNMENT = 4096
#: File systems whose direct I/O is sound and fast. Network and FUSE file systems are read and written through their own caches.
_DIRECT = ("ext4", "xfs", "overlay")
_SYNC_FILE_RANGE_WRITE = 2


@lru_cache(maxsize=1)
def _libc() -> Any:
    """The C library of this process, None where the calls below are not Linux's."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def aligned(size: int) -> Bytes:
    """`size` bytes of memory that begin at a page."""
    return np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8)[:size]


def round_up(size: int) -> int:
    """`size` up to the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Room:
    """Memory of one thread that is used again and again; what was taken is valid until the next take."""

    def __init__(self) -> None:
        self._memory = aligned(ALIGNMENT)

    def take(self, size: int) -> Bytes:
        """`size` bytes that begin at a page."""
        if size > len(self._memory):
            self._memory = aligned(round_up(size))
        return self._memory[:size]


def takes_direct(path: Path) -> bool:
    """Whether direct I/O is to be tried on files at `path`."""
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        return file_system(path) in _DIRECT
    except OSError:
        return False


def file_system(path: Path) -> str:
    """The type of the file system at `path`, as in /proc/self/mountinfo; '' where that cannot be read."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == wanted:
                return rest.split()[0]
    return ""


class Residency:
    """Tells which ranges of an open file the page cache holds."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._address = 0
        if size and _libc() is not None:
            with contextlib.suppress(OSError, ValueError):
                # Mapped, never touched: the memory stays empty, and a file that shrinks harms nobody.
                self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
                self._address = np.frombuffer(self._map, np.uint8).ctypes.data

    def holds(self, start: int, length: int) -> bool:
        """Whether all of the range is in memory. True where it cannot be told: then the cache is the right way."""
        if not self._address or not length:
            return True
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        pages = np.empty(-(-(start + length - first) // mmap.PAGESIZE), np.uint8)
        failed = _libc().mincore(
            ctypes.c_void_p(self._address + first), ctypes.c_size_t(start + length - first), ctypes.c_void_p(pages.ctypes.data)
        )
        return bool(failed or (pages & 1).all())


def preallocate(descriptor: int, size: int) -> None:
    """Reserve `size` bytes where the file system can; OSError if the disk has not so many.

    posix_fallocate is not used: where the file system cannot, it writes zeros.
    """
    fallocate = getattr(_libc(), "fallocate", None)
    if fallocate is not None and fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))


def start_write_back(descriptor: int, start: int, length: int) -> None:
    """Begin to write a range of the page cache to the disk, without waiting."""
    sync_file_range = getattr(_libc(), "sync_file_range", None)
    if sync_file_range is not None:
        sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))
