import logging
import shutil

import pytest

from tuneline.checkpoints.find import find, open_source
from tuneline.core.errors import CheckpointError


@pytest.fixture
def run_folder(checkpoints, tmp_path):
    """Steps 5, 10 and 20, of which the last lost a rank's file."""
    for name in ("step_5", "step_10", "step_20"):
        shutil.copytree(checkpoints / "trl/step_7", tmp_path / "run" / name)
    (tmp_path / "run/step_20/weights/__3_0.distcp").unlink()
    (tmp_path / "run/tmp_step_30").mkdir()
    return tmp_path / "run"


def found(path, step=None):
    tree, under = open_source(path)
    try:
        return find(tree, under, step)
    finally:
        tree.close()


def test_the_newest_whole_step_is_taken_and_the_log_says_why(run_folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tuneline"), "propagate", True)
    result = found(run_folder)
    assert (result.step, result.layout.under) == (10, "step_10/weights")
    assert "step 20 cannot be converted" in caplog.text
    assert "__3_0.distcp" in caplog.text
    assert "step 10 is taken" in caplog.text


def test_a_step_that_is_given_is_taken_or_refused(run_folder):
    assert found(run_folder, 5).step == 5
    with pytest.raises(CheckpointError, match=r"__3_0\.distcp"):
        found(run_folder, 20)
    with pytest.raises(CheckpointError, match="holds no step 7") as caught:
        found(run_folder, 7)
    assert caught.value.choices == ("20", "10", "5")


def test_a_step_s_own_folder_may_be_given_with_its_number(run_folder):
    assert found(run_folder / "step_10").step == 10
    assert found(run_folder / "step_10/weights", 10).step == 10
    with pytest.raises(CheckpointError, match="holds no step 5"):
        found(run_folder / "step_10", 5)


def test_no_whole_step_raises_what_is_wrong_with_the_newest(run_folder):
    for name in ("step_5", "step_10"):
        shutil.rmtree(run_folder / name / "weights")
    with pytest.raises(CheckpointError, match=r"__3_0\.distcp"):
        found(run_folder)


@pytest.mark.parametrize("path", ["nothing", "run/step_10/nothing", "run/step_99/weights"])
def test_a_missing_folder_is_refused(run_folder, path):
    with pytest.raises(CheckpointError, match="is no folder"):
        open_source(run_folder.parent / path)
