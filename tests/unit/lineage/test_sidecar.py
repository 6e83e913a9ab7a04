from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.lineage_chain import fill
from tuneline.core.errors import LineageError
from tuneline.lineage import sidecar
from tuneline.lineage.digests import digest_folder, quick_files
from tuneline.lineage.sidecar import Statement, build_statement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "step_4", {"weights": b"trained"})
    return tmp_path / "step_4"


def statement(folder: Path, *, quick: bool = False, attempt: int = 1) -> Statement:
    files = {"quick": quick_files(folder)} if quick else {"files": digest_folder(folder)}
    return build_statement(
        kind="checkpoint", uri=str(folder), parameters={}, run_id="tl1", task="train", attempt=attempt, started="a", finished="b", **files
    )  # type: ignore[arg-type]


def test_it_is_written_once_and_the_first_one_stands(folder: Path) -> None:
    first, second = statement(folder), statement(folder, attempt=2)
    assert sidecar.write(folder, first) is first
    assert sidecar.write(folder, second) == first == sidecar.read(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["lineage.json", "weights"]


def test_other_files_under_an_existing_sidecar_are_refused(folder: Path) -> None:
    sidecar.write(folder, statement(folder))
    (folder / "weights").write_bytes(b"other")
    with pytest.raises(LineageError, match="its files were other ones") as error:
        sidecar.write(folder, statement(folder))
    assert "tl1/train/1" in error.value.found


def test_a_quick_sidecar_gives_way_to_the_full_one(folder: Path) -> None:
    quick = statement(folder, quick=True)
    assert sidecar.write(folder, quick) is quick
    assert sidecar.read(folder) == quick == sidecar.write(folder, replace(quick, attempt=2))
    full = statement(folder)
    assert [item.path for item in full.subjects] == ["lineage.quick.json", "weights"]
    sidecar.write(folder, full)
    assert sidecar.read(folder) == full == sidecar.write(folder, quick)
    assert sidecar.find(folder) == folder / "lineage.json"


def test_a_quick_sidecar_under_the_name_of_a_full_one_is_refused(folder: Path) -> None:
    (folder / "lineage.json").write_bytes(statement(folder, quick=True).to_json())
    with pytest.raises(LineageError, match="no sidecar of Tuneline"):
        sidecar.read(folder)


def test_what_is_missing_unreadable_or_too_large_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LineageError, match=r"has no lineage\.json"):
        sidecar.read(folder)
    (folder / "lineage.json").mkdir()
    with pytest.raises(LineageError, match="Is a directory"):
        sidecar.read(folder)
    (folder / "lineage.json").rmdir()
    sidecar.write(folder, statement(folder))
    monkeypatch.setattr(sidecar, "MAX_BYTES", 10)
    with pytest.raises(LineageError, match="no sidecar of Tuneline") as error:
        sidecar.read(folder)
    assert "more than any sidecar" in error.value.found
    assert stat.S_ISREG((folder / "lineage.json").stat().st_mode)
