"""Files are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

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
