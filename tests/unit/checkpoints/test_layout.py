import pytest

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.layout import ADAPTER, DCP, FSDP, HF, PLACES, SHARDED, detect, split_source, steps
from tuneline.core.errors import CheckpointError

FILES = {
    DCP: ".metadata",
    SHARDED: "shard-00001-model-00001-of-00001.safetensors",
    FSDP: "model_world_size_8_rank_3.pt",
    HF: "model.safetensors.index.json",
    ADAPTER: "adapter_model.safetensors",
}


def make(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return Folder(folder)


@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind, places in PLACES.items() for place in places])
def test_each_layout_is_found(tmp_path, kind, place):
    layout = detect(make(tmp_path, f"{place}/{FILES[kind]}".lstrip("/")))
    assert (layout.kind, layout.under) == (kind, place)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("/a/step_1", ("/a/step_1", "")),
        ("/a/step_1/policy/weights/model/", ("/a/step_1", "policy/weights/model")),
        ("gs://b/run/global_step_5/actor", ("gs://b/run/global_step_5", "actor")),
    ],
)
def test_what_a_person_names_is_a_part_of_a_step(source, parts):
    assert split_source(source) == parts


def test_companions_are_those_of_the_step(tmp_path):
    tree = make(
        tmp_path,
        "policy/weights/model/.metadata",
        "policy/tokenizer/x",
        "tokenizer/x",
        "policy/weights/x",
    )
    expected = ("policy/weights/model", "policy/weights", "policy", "policy/tokenizer", "", "tokenizer")
    for under in ("", "policy", "policy/weights", "policy/weights/model"):
        assert detect(tree, under).companions == expected
    verl = make(tmp_path / "verl", "actor/model_world_size_1_rank_0.pt", "actor/huggingface/config.json")
    assert detect(verl).companions == ("actor", "actor/huggingface", "")


def test_nothing_found_says_what_was_looked_for_and_what_is_there(tmp_path):
    for number in range(25):
        (tmp_path / f"folder_{number:02d}").mkdir()
    with pytest.raises(CheckpointError) as caught:
        detect(Folder(tmp_path))
    text = str(caught.value)
    assert all(f"{tmp_path}/{place}/".replace("//", "/") + ".metadata" in text for place in PLACES[DCP])
    assert f"{tmp_path}/actor/model_world_size_*_rank_*.pt (verl" in text
    assert "folder_00, folder_01" in text
    assert "and 5 more" in text


def test_two_checkpoints_are_not_guessed_between(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        detect(make(tmp_path, "weights/.metadata", "weights/model/.metadata"))
    assert caught.value.choices == (f"{tmp_path}/weights (dcp)", f"{tmp_path}/weights/model (dcp)")


def test_a_model_beside_its_shards_or_its_adapter_is_no_second_checkpoint(tmp_path):
    assert detect(make(tmp_path / "a", "actor/model_world_size_1_rank_0.pt", "actor/huggingface/model.safetensors")).kind == FSDP
    assert detect(make(tmp_path / "b", "model.safetensors", "adapter_model.safetensors")).kind == HF


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("policy/weights/iter_0000005/x", "iter_0000005"),
        ("actor/dist_ckpt/.metadata", "dist_ckpt"),
        ("actor/model/dist_ckpt/x", "dist_ckpt"),
        ("mp_rank_00_001/x.pt", "mp_rank_00_001"),
        ("weights/common.pt", "common.pt"),
    ],
)
def test_megatron_is_refused_by_name_even_beside_a_metadata_file(tmp_path, path, sign):
    tree = make(tmp_path, path, "weights/.metadata")
    with pytest.raises(CheckpointError, match=rf"is a Megatron checkpoint \({sign}\)") as caught:
        detect(tree)
    assert "Megatron-Bridge" in caught.value.next_move


def test_steps_are_listed_newest_first(tmp_path):
    tree = make(tmp_path, "step_5/x", "global_step_20/x", "step_100/x", "tmp_step_200/x", "step_x/x", "step_7")
    assert steps(tree) == {100: "step_100", 20: "global_step_20", 5: "step_5"}
