"""Files are whole or absent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.lineage_chain import TickingClock
from tuneline.core import files


def test_write_atomic_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.json"
    files.write_atomic(target, b"old")
    files.write_json(target, {"b": 1, "a": 2})
    assert target.read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'
    assert [path.name for path in target.parent.iterdir()] == ["a.json"]


def test_create_only_keeps_the_first(tmp_path: Path) -> None:
    target = tmp_path / "lock"
    assert files.create_only(target, b"first")
    assert not files.create_only(target, b"second")
    assert target.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_publish_dir_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with files.publish_dir(tmp_path / "good") as folder:
        (folder / "x").write_text("1")
        assert not (tmp_path / "good").exists()
    assert (tmp_path / "good" / "x").read_text() == "1"
    with pytest.raises(ZeroDivisionError), files.publish_dir(tmp_path / "bad") as folder:
        (folder / "x").write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_publish_keeps_what_an_earlier_writer_published(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "x").write_text("first")
    with files.scratch_dir(tmp_path) as folder:
        (folder / "x").write_text("second")
        assert not files.publish(folder, tmp_path / "final")
    assert (tmp_path / "final" / "x").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def left_over(parent: Path, pid: int, age: float, *, host: str = "", now: float = 1e9) -> Path:
    """A scratch folder as a killed process leaves it, its last file written `age` seconds before `now`."""
    folder = parent / f".scratch.{host or files._host()}-{pid}-0a1b2c3d.tmp"
    folder.mkdir()
    (folder / "x").write_text("half")
    for path in (folder / "x", folder):
        os.utime(path, (now - age, now - age))
    return folder


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_new_scratch_folder_removes_what_a_killed_process_left_long_ago(tmp_path: Path) -> None:
    old = left_over(tmp_path, dead_pid(), files.SCRATCH_SECONDS + 1)
    with files.scratch_dir(tmp_path, clock=TickingClock(1e9)) as folder:
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert not old.exists()


@pytest.mark.parametrize("kept", ["young", "young inside", "alive", "of another user", "of another host", "file", "link", "other name"])
def test_a_scratch_folder_that_may_be_in_use_stays(kept: str, tmp_path: Path) -> None:
    old, pid = files.SCRATCH_SECONDS + 10, dead_pid()
    if kept == "young":
        left = left_over(tmp_path, pid, files.SCRATCH_SECONDS - 10)
    elif kept == "young inside":
        left = left_over(tmp_path, pid, old)
        os.utime(left / "x", (1e9 - 10, 1e9 - 10))
    elif kept in ("alive", "of another user"):
        left = left_over(tmp_path, os.getpid() if kept == "alive" else 1, old)
    elif kept == "of another host":
        left = left_over(tmp_path, pid, old, host="0" * 8)
    else:
        made = left_over(tmp_path, pid, old)
        left = tmp_path / (".convert-0a1b2c3d.tmp" if kept == "other name" else made.name)
        made.rename(tmp_path / "elsewhere")
        if kept == "file":
            left.write_text("x")
            os.utime(left, (1e9 - old, 1e9 - old))
        elif kept == "link":
            left.symlink_to(tmp_path / "elsewhere")
        else:
            (tmp_path / "elsewhere").rename(left)
    with files.scratch_dir(tmp_path, clock=TickingClock(1e9)):
        pass
    assert left.exists()
    assert (left if left.is_file() else left / "x").read_text() in ("x", "half")
