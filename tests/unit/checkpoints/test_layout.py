import pytest

from tuneline.checkpoints.layout import DCP_PLACES, detect
from tuneline.core.errors import CheckpointError


@pytest.mark.parametrize("place", DCP_PLACES)
def test_each_layout_is_found(tmp_path, place):
    folder = tmp_path / "step_1" / place
    folder.mkdir(parents=True)
    (folder / ".metadata").touch()
    layout = detect(tmp_path / "step_1")
    assert layout.folder == folder


def test_companions_are_those_of_the_step_and_no_others(tmp_path):
    step = tmp_path / "model" / "run" / "step_1"
    (step / "policy/weights/model").mkdir(parents=True)
    for folder in (step / "policy/tokenizer", step / "tokenizer", tmp_path / "tokenizer", step.parent / "tokenizer"):
        folder.mkdir()
    (step / "policy/weights/model/.metadata").touch()
    policy = step / "policy"
    expected = (policy / "weights/model", policy / "weights", policy, policy / "tokenizer", step, step / "tokenizer")
    for source in (step, policy, policy / "weights", policy / "weights/model"):
        assert detect(source).companions == expected


def test_nothing_found_says_what_was_looked_for_and_what_is_there(tmp_path):
    for number in range(25):
        (tmp_path / f"step_{number:02d}").mkdir()
    with pytest.raises(CheckpointError) as caught:
        detect(tmp_path)
    text = str(caught.value)
    assert all(str(tmp_path / place / ".metadata") in text for place in DCP_PLACES)
    assert "step_00, step_01" in text
    assert "and 5 more" in text


def test_two_checkpoints_are_not_guessed_between(tmp_path):
    for place in ("weights", "weights/model"):
        (tmp_path / place).mkdir()
        (tmp_path / place / ".metadata").touch()
    with pytest.raises(CheckpointError) as caught:
        detect(tmp_path)
    assert caught.value.choices == (str(tmp_path / "weights"), str(tmp_path / "weights/model"))


def test_a_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match="is no folder"):
        detect(tmp_path / "nothing")
