import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tuneline.checkpoints import blobs, disk
from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.disk import ALIGNMENT, Residency, Room, file_system, preallocate, round_up


def test_memory_begins_at_a_page_and_is_used_again():
    room = Room()
    first = room.take(10)
    assert first.ctypes.data % ALIGNMENT == 0
    assert room.take(5000).ctypes.data % ALIGNMENT == 0
    assert room.take(100).ctypes.data == room.take(5000).ctypes.data
    assert [round_up(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


def test_the_file_system_is_named(tmp_path):
    assert file_system(Path("/proc")) == "proc"
    assert file_system(tmp_path)


def test_what_is_in_memory_is_told_from_what_is_not(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    with open(path, "rb") as handle:
        handle.read()
        residency = Residency(handle.fileno(), 1 << 20)
        assert residency.holds(0, 1 << 20)
        assert residency.holds(5, 0)
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not disk.takes_direct(path):
            pytest.skip(f"{file_system(path)} keeps all files in memory")
        assert not residency.holds(4096, 100_000)


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(("offset", "length"), [(0, 200_000), (4095, 70_000), (12_345, 1 << 20), (2_000_000 - 66_000, 66_000), (77, 5)])
def test_cold_ranges_are_read_past_the_cache_with_the_same_bytes(tmp_path, offset, length, cold):
    path = tmp_path / "file"
    content = np.random.default_rng(0).integers(0, 256, 2_000_000, np.uint8).tobytes()
    path.write_bytes(content)
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
        if cold:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    blob = FileBlob(path)
    blob.expect(offset, length)
    assert blob.fetch(offset, length, Room()).tobytes() == content[offset : offset + length]
    blob.close()


def test_a_disk_that_refuses_direct_reads_is_read_through_the_cache(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(2_000_000))
    monkeypatch.setattr(blobs, "takes_direct", lambda path: True)
    blob = FileBlob(path)
    monkeypatch.setattr(Residency, "holds", lambda self, start, length: False)
    real, calls = os.preadv, []

    def preadv(descriptor, buffers, offset):
        calls.append(offset)
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert blob.fetch(100, 100_000, Room()).tobytes() == bytes(100_000)
    assert calls == [0, 100]
    assert blob.fetch(100, 100_000, Room()).tobytes() == bytes(100_000)
    assert calls == [0, 100, 100], "it is not asked again"
    blob.close()


def test_a_full_disk_is_found_before_anything_is_written(tmp_path):
    with open(tmp_path / "file", "wb") as handle:
        preallocate(handle.fileno(), 1 << 20)
        with pytest.raises(OSError) as caught:
            preallocate(handle.fileno(), 1 << 55)
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
