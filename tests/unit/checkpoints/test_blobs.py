import os

import pytest

from tuneline.checkpoints.blobs import FileBlob, Folder
from tuneline.core.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "weights"
    path.mkdir()
    (path / "a").write_bytes(b"0123456789")
    (tmp_path / "outside").write_bytes(b"secret")
    with Folder(path) as opened:
        yield opened


def test_files_are_opened_once_and_read_at_offsets(folder):
    blob = folder.open("a")
    assert folder.open("a") is blob
    assert (blob.size, blob.read(3, 4)) == (10, b"3456")


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "a/../../outside", "..", ".", "", "./a", "a/", "a//b", "a\0b", "..\\outside", "a" * 2000]
)
def test_paths_that_lead_out_are_refused(folder, path):
    with pytest.raises(CheckpointError, match="names a file outside itself"):
        folder.open(path)


def test_links_that_lead_out_are_refused(folder):
    os.symlink("../outside", folder.path / "link")
    os.symlink("..", folder.path / "up")
    os.symlink("a", folder.path / "inner")
    for path in ("link", "up/outside"):
        with pytest.raises(CheckpointError, match="a link that leads out"):
            folder.open(path)
    assert folder.open("inner").read(0, 1) == b"0"


def test_a_loop_of_links_is_refused(folder):
    os.symlink("loop", folder.path / "loop")
    with pytest.raises(CheckpointError):
        folder.open("loop")


def test_a_fifo_does_not_block(folder):
    os.mkfifo(folder.path / "fifo")
    with pytest.raises(CheckpointError, match="not a regular file"):
        folder.open("fifo")


def test_a_missing_file_and_a_folder_are_refused(folder):
    (folder.path / "sub").mkdir()
    with pytest.raises(CheckpointError, match="No such file"):
        folder.open("b")
    with pytest.raises(CheckpointError, match="not a regular file"):
        folder.open("sub")


def test_reading_past_the_end_names_the_byte(folder):
    with pytest.raises(CheckpointError, match="ends at byte 10, 2 bytes too early"):
        folder.open("a").read(8, 4)


def test_a_file_that_shrinks_is_found_out(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    blob = FileBlob(path)
    os.truncate(path, 10)
    with pytest.raises(CheckpointError, match="too early"):
        blob.read(0, 100)
    blob.close()
