import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.folders import entries, read_sharded
from tuneline.checkpoints.safetensors import Item, index_json, plan_shards
from tuneline.checkpoints.tensors import BF16, F32
from tuneline.core.errors import CheckpointError

SHARDS = "sharded/step_2/policy/weights/model"


def weights(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def same(ours, theirs):
    assert set(ours) == set(theirs)
    assert all(ours[name].dtype == t.dtype and torch.equal(ours[name], t) for name, t in theirs.items())


def test_sharded_safetensors_are_put_together(checkpoints, tmp_path):
    done = convert(checkpoints / "sharded/step_2", tmp_path, base_dir=checkpoints / "base-sharded", max_shard_bytes=700)
    assert (done.kind, done.step) == ("sharded safetensors", 2)
    same(weights(done.folder), load_file(checkpoints / "sharded.safetensors"))


def test_without_a_base_that_confirms_shapes_they_are_refused(checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="does not record whole shapes"):
        convert(checkpoints / "sharded/step_2", tmp_path, base_dir=checkpoints / "base-bare", max_shard_bytes=700)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_missing_shard_is_found(checkpoints, tmp_path, number):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / SHARDS, copy)
    (copy / f"shard-{number:05d}-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError):  # the last one is found by the base's shapes
        convert(copy, tmp_path / "out", base_dir=checkpoints / "base-sharded", max_shard_bytes=700)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (None, "no DCP_SHARDING_INFO"),
        ("[]", "no DCP_SHARDING_INFO"),
        ('{"a": {}}', "no DCP_SHARDING_INFO"),
        ("{}", "without offsets"),
        ('{"a": {"saved_offsets": [0]}}', "other dimensions"),
        ('{"a": {"saved_offsets": [-1, 0]}}', "extent of a dimension"),
        ('{"a": {"saved_offsets": "00"}}', "where a shape must be"),
    ],
)
def test_offsets_that_cannot_be(tmp_path, info, reason):
    save_file(
        {"a": torch.ones(2, 3)}, tmp_path / "shard-00001-model-00001-of-00001.safetensors", {"DCP_SHARDING_INFO": info} if info else {}
    )
    with pytest.raises(CheckpointError, match=reason):
        read_sharded(Folder(tmp_path))


def test_a_hugging_face_model_is_cut_anew_and_cast(checkpoints, tmp_path):
    first = convert(checkpoints / "v2/step_3", tmp_path / "a", base_dir=checkpoints / "base", max_shard_bytes=500)
    again = convert(first.folder, tmp_path / "b", base_dir=checkpoints / "base", max_shard_bytes=1 << 40)
    assert (again.kind, [path.name for path in again.folder.glob("*.safetensors")]) == ("hugging face", ["model.safetensors"])
    same(weights(again.folder), weights(first.folder))
    back = convert(again.folder, tmp_path / "c", base_dir=checkpoints / "base", max_shard_bytes=500)
    assert back.digest == first.digest, "the same files come out"


def test_a_folder_is_read_through_its_index(tmp_path):
    assert entries(Folder(tmp_path)) == {}
    shards = plan_shards([Item("a", F32, (2,)), Item("b", BF16, (4,))], 8)
    for shard in shards:
        (tmp_path / shard.file).write_bytes(shard.header + bytes(8))
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(index_json(shards))
    assert {name: file for name, (file, _) in entries(Folder(tmp_path)).items()} == {"a": shards[0].file, "b": shards[1].file}
    index.write_bytes(index_json(shards).replace(b'"b"', b'"c"'))
    with pytest.raises(CheckpointError, match="does not say what its files hold"):
        entries(Folder(tmp_path))
    index.write_bytes(b'{"weight_map": {"a": "../model.safetensors"}}')
    with pytest.raises(CheckpointError, match="outside its folder"):
        entries(Folder(tmp_path))
    for content in (b"[]", b"{}", b'{"weight_map": {"a": 5}}', b"{"):
        index.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"no JSON|no index"):
            entries(Folder(tmp_path))


def test_extents_of_a_header_are_bounded(tmp_path):
    text = json.dumps({"a": {"dtype": "F32", "shape": [0, 1 << 50], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointError, match="too large"):
        entries(Folder(tmp_path))
