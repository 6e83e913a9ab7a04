"""The record of what a training is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneline.core.errors import StoreError
from tuneline.core.files import read_json
from tuneline.gcp.documents import Folder
from tuneline.tasks.training import write_description


def test_the_first_description_stands(tmp_path: Path) -> None:
    write_description(Folder(), str(tmp_path / "training.json"), {"training_key": "k", "started": "first"})
    write_description(Folder(), str(tmp_path / "training.json"), {"training_key": "k", "started": "second"})
    assert read_json(tmp_path / "training.json")["started"] == "first"


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"training_key": "other"}'])
def test_a_damaged_description_is_told_of_before_training(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "training.json").write_text(damaged)
    with pytest.raises(StoreError, match=r"training\.json"):
        write_description(Folder(), str(tmp_path / "training.json"), {"training_key": "k"})
