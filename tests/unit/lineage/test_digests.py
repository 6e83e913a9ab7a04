from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.lineage_chain import fill
from tuneline.core.errors import LineageError
from tuneline.lineage import digests
from tuneline.lineage.digests import FileDigest, content_digest, digest_file, digest_folder, list_files, quick_files

FILES = {
    "config.json": b"{}",
    "weights/b.bin": b"bb",
    "weights/a.bin": b"",
    "lineage.json": b"not part of it",
    "weights/lineage.json": b"is",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "a folder", FILES)
    (tmp_path / "a folder" / "empty").mkdir()
    return tmp_path / "a folder"


def test_every_file_but_the_sidecar_sorted_with_its_sha256_and_size(folder: Path) -> None:
    found = digest_folder(folder)
    wanted = {path: data for path, data in FILES.items() if path != "lineage.json"}
    assert [file.path for file in found] == sorted(wanted)
    assert {file.path: (file.sha256, file.size) for file in found} == {
        path: (hashlib.sha256(data).hexdigest(), len(data)) for path, data in wanted.items()
    }


def test_content_digest_is_the_sha256_of_the_sorted_lines() -> None:
    files = [FileDigest("b", "1" * 64, 3), FileDigest("a", "2" * 64, 4)]
    lines = "1" * 64 + "  b\n" + "2" * 64 + "  a\n"
    assert content_digest(files) == content_digest(reversed(files)) == hashlib.sha256(lines.encode()).hexdigest()


@given(st.lists(st.tuples(st.text("abc/", min_size=1), st.sampled_from(["0" * 64, "1" * 64])), unique=True), st.randoms())
def test_content_digest_tells_sets_of_files_apart_and_not_their_order(files: list[tuple[str, str]], random: object) -> None:
    rows = [FileDigest(path, sha, 1) for path, sha in files]
    shuffled = rows[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert content_digest(shuffled) == content_digest(rows)
    assert content_digest([*rows, FileDigest("new", "2" * 64, 1)]) != content_digest(rows)


def test_crc32c_is_the_check_value_of_the_standard(tmp_path: Path) -> None:
    fill(tmp_path, {"check": b"123456789", "lineage.quick.json": b"left out"})
    assert [(file.path, file.size, file.crc32c) for file in quick_files(tmp_path)] == [("check", 9, "e3069283")]


def test_a_link_inside_the_folder_counts_as_its_content(folder: Path) -> None:
    (folder / "link").symlink_to("config.json")
    assert digest_file(folder / "link", "link") in digest_folder(folder)


@pytest.mark.parametrize("target", ["../outside", "nowhere", "weights", "/etc/hostname"])
def test_a_link_that_leads_out_or_to_no_file_is_refused_by_name(folder: Path, target: str) -> None:
    (folder.parent / "outside").write_bytes(b"x")
    (folder / "weights" / "link").symlink_to(folder / target)
    with pytest.raises(LineageError, match=r"weights/link cannot be part of a digest") as error:
        digest_folder(folder)
    assert "a link" in error.value.found


def test_a_pipe_and_a_socket_are_refused_without_being_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(LineageError, match="pipe"):
        digest_folder(folder)
    (folder / "pipe").unlink()
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(LineageError, match="socket"):
            digest_folder(folder)


@pytest.mark.parametrize("name", [b"two\nlines", b"\xff\xfe"])
def test_a_name_that_a_digest_line_cannot_hold_is_refused(folder: Path, name: bytes) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"x")
    with pytest.raises(LineageError, match="cannot be part of a digest"):
        list_files(folder)


def test_a_file_that_changes_while_it_is_read_is_refused(folder: Path) -> None:
    def grow(handle: object) -> str:
        with open(folder / "config.json", "ab") as other:
            other.write(b"more")
        return "digest"

    with pytest.raises(LineageError, match="changes while it is digested") as error:
        digests._read(folder / "config.json", grow)
    assert error.value.found == "2 bytes, then 6"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LineageError, match="no such folder"):
        digest_folder(tmp_path / "none")
    with pytest.raises(LineageError, match="cannot be read: No such file"):
        digest_file(tmp_path / "none")
