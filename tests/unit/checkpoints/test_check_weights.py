import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tuneline.checkpoints.check_weights import check_weights, count_not_finite
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.tensors import BY_TORCH_NAME
from tuneline.core.errors import CheckpointError


@pytest.fixture
def converted(checkpoints, tmp_path):
    done = convert(checkpoints / "trl/step_7", tmp_path / "out", base_dir=checkpoints / "base-tied", max_shard_bytes=600)
    return done


def test_a_sound_model_has_no_faults(converted, checkpoints):
    result = check_weights(converted.folder, base=checkpoints / "base-tied")
    assert (result.faults, result.digest) == ([], converted.digest)
    assert "0 of 5 tensors are equal to the base's" in result.notes
    assert [tensor.name for tensor in result.tensors] == sorted(load_all(converted.folder))
    assert json.loads(json.dumps(result.to_dict()))["tensors"][0]["nan"] == 0


def load_all(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def model(folder, tensors, **config):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    return folder


def test_a_training_that_changed_nothing_is_a_fault(tmp_path):
    tensors = {"a": torch.ones(3), "b": torch.zeros(2, 2)}
    base, same = model(tmp_path / "base", tensors), model(tmp_path / "same", {n: t.clone() for n, t in tensors.items()})
    half = model(tmp_path / "half", {name: tensor.bfloat16() for name, tensor in tensors.items()})
    for folder in (same, half):
        assert any("training changed nothing" in fault for fault in check_weights(folder, base=base).faults)
    changed = model(tmp_path / "changed", {"a": torch.ones(3), "b": torch.full((2, 2), 1e-20)})
    result = check_weights(changed, base=base)
    assert (result.faults, result.notes[-1]) == ([], "1 of 2 tensors are equal to the base's")


def test_names_and_shapes_must_be_the_base_s(tmp_path):
    base = model(tmp_path / "base", {"a": torch.ones(3), "b": torch.ones(2), "lm_head.weight": torch.ones(1, 1)})
    ours = model(tmp_path / "ours", {"a": torch.ones(4), "c": torch.ones(2)})
    assert check_weights(ours, base=base).faults == ["b of the base is missing", "c is not in the base", "a is [4], in the base [3]"]
    other = model(tmp_path / "other", {"x": torch.ones(4)})
    assert check_weights(other, base=base).faults == ["no tensor has a name that the base has"]


def test_nan_and_infinities_are_counted(tmp_path):
    weights = torch.ones(1000, 1000)
    weights[5, 5], weights[999, 999], weights[7, 0] = float("nan"), float("inf"), float("-inf")
    result = check_weights(model(tmp_path / "x", {"a": weights, "b": torch.tensor([1, 2])}))
    assert result.faults == ["a has 1 NaN and 2 infinite elements"]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_the_census_is_torch_s(name):
    dtype, size = getattr(torch, name), BY_TORCH_NAME[name].size
    data = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8) | np.uint8(0x78)
    values = torch.from_numpy(data[: len(data) // size * size].copy()).view(dtype).double()
    assert count_not_finite(data, BY_TORCH_NAME[name]) == (int(values.isnan().sum()), int(values.isinf().sum()))
    assert values.isnan().any()


def test_another_checkpoint_is_compared_tensor_by_tensor(tmp_path):
    a = model(tmp_path / "a", {"a": torch.ones(3), "b": torch.ones(2), "c": torch.ones(1), "n": torch.tensor([1])})
    b = model(tmp_path / "b", {"a": torch.ones(3), "b": torch.tensor([1, 1.5]), "d": torch.ones(1), "n": torch.tensor([2])})
    result = check_weights(a, other=b)
    assert result.faults == []
    assert {tensor.name: tensor.largest for tensor in result.tensors} == {"a": 0.0, "b": 0.5, "c": None, "n": float("inf")}
    assert result.notes[-4:] == [
        "2 tensors are in one of the two only: c, d",
        "2 of 3 tensors differ from the other checkpoint's",
        "n: at most inf",
        "b: at most 0.5",
    ]


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda folder: flip(folder / "model-00001-of-00004.safetensors"), "is not its content digest"),
        (lambda folder: (folder / "model-00002-of-00004.safetensors").unlink(), "cannot be opened"),
        (
            lambda folder: shutil.copy(folder / "model-00001-of-00004.safetensors", folder / "x.safetensors"),
            "is not in model.safetensors.index",
        ),
        (lambda folder: (folder / "config.json").unlink(), "there is no config.json"),
        (lambda folder: edit(folder / "config.json", vocab_size=38), "38 tokens"),
        (lambda folder: edit(folder / "config.json", dtype="float64"), "the config says float64"),
        (lambda folder: edit(folder / "model.safetensors.index.json", metadata={"total_size": 5}), "says 5 bytes"),
        (lambda folder: (folder / "config.json").write_text("["), "is no JSON"),
    ],
)
def test_damage_is_named(converted, spoil, fault):
    spoil(converted.folder)
    assert any(fault in found for found in check_weights(converted.folder).faults)


def edit(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_sidecar_that_does_not_fit_is_a_fault(converted):
    (converted.folder / "lineage.json").write_text("{}")
    assert any("lineage" in fault for fault in check_weights(converted.folder).faults)


def test_a_tied_head_that_is_there_all_the_same_is_a_fault(tmp_path):
    tensors = {"model.embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(2, 2)}
    faults = check_weights(model(tmp_path / "x", tensors, tie_word_embeddings=True)).faults
    assert any("ties the embeddings" in fault for fault in faults)


def test_no_model_is_an_error(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError):
            check_weights(folder)
