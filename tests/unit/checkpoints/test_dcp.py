import dataclasses
import os
import pickle
import shutil

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, MetadataIndex

from tuneline.checkpoints import dcp
from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.dcp import model_names, read_dcp
from tuneline.core.errors import CheckpointError

WEIGHTS = "trl/step_7/weights"
EMBEDDING = "model.embed_tokens.weight"


def read(path):
    with Folder(path) as folder:
        tensors = read_dcp(folder)
    for tensor in tensors:
        check_cover(tensor)
    return {tensor.name: tensor for tensor in tensors}


def test_tensors_have_their_global_shapes_and_their_chunks(checkpoints):
    tensors = read(checkpoints / "v1/step_3/policy/weights")
    embedding = tensors[EMBEDDING]
    assert (embedding.dtype.name, embedding.shape) == ("bfloat16", (37, 8))
    assert [(chunk.offsets, chunk.sizes) for chunk in embedding.chunks] == [((10 * r, 0), (min(10, 37 - 10 * r), 8)) for r in range(4)]
    assert [chunk.offsets for chunk in tensors["model.layers.0.mlp.down_proj.weight"].chunks] == [(0, 5 * r) for r in range(4)]
    assert len(tensors["model.layers.0.norm.weight"].chunks) == 1, "replicated tensors are stored once"
    assert (tensors["model.scalar"].shape, tensors["model.empty"].chunks) == ((), ())


def test_v1_and_v2_give_the_same_names(checkpoints):
    v1, v2 = read(checkpoints / "v1/step_3/policy/weights"), read(checkpoints / "v2/step_3/policy/weights/model")
    assert set(v1) == set(v2)
    assert {"lm_head.weight", "model.norm.weight"} < set(v1)


@pytest.mark.parametrize(
    ("planner_data", "names"),
    [
        ({"model.a": ("model", "a"), "optim.a": ("optim", "a")}, {"model.a": "a"}),
        ({"model.a": ("model.a",), "optim.a": ("optim", "a")}, {"model.a": "model.a"}),
        ({"model.a": ("model", "x", 0), "optim.a": ("optim", 1)}, {"model.a": "x.0"}),
        (None, {"model.a": "model.a", "optim.a": "optim.a"}),
    ],
)
def test_the_paths_tell_what_is_the_model_s(planner_data, names):
    assert model_names({"model.a": 0, "optim.a": 0}, planner_data, "x") == names


@pytest.mark.parametrize(
    ("fqns", "planner_data", "reason"),
    [
        (["a"], {"a": ("optim", "a")}, "no model tensors"),
        ([], {}, "no model tensors"),
        (["a"], {}, "no path in planner_data"),
        (["a"], {"a": ()}, "no path in planner_data"),
        (["a"], {"a": "a"}, "no path in planner_data"),
        (["a"], [], "a list where a dict must be"),
        (["a", "b"], {"a": ("x",), "b": ("x",)}, "two tensors of one name"),
        (["a"], {"a": ("a\nb",)}, "a tensor named"),
        (["a"], {"a": ("__metadata__",)}, "a tensor named"),
        (["a"], {"a": ("",)}, "a tensor named"),
        ([5], None, "no text"),
    ],
)
def test_names_that_cannot_be(fqns, planner_data, reason):
    with pytest.raises(CheckpointError, match=reason):
        model_names(dict.fromkeys(fqns), planner_data, "x")


def place_of(metadata, fqn=EMBEDDING, number=0):
    return [index for index in metadata.storage_data if index.fqn == fqn][number]


def change_place(fqn=EMBEDDING, number=0, **values):
    def change(metadata):
        index = place_of(metadata, fqn, number)
        metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **values)

    return change


def swap_places(metadata):
    first, second = place_of(metadata), place_of(metadata, "lm_head.weight", 3)
    data = metadata.storage_data
    data[first], data[second] = data[second], data[first]


def share_a_place(metadata):
    metadata.storage_data[place_of(metadata)] = metadata.storage_data[place_of(metadata, "lm_head.weight")]


def drop_a_place(metadata):
    del metadata.storage_data[place_of(metadata)]


def drop_a_chunk(metadata):
    del metadata.state_dict_metadata[EMBEDDING].chunks[1]


def double_a_chunk(metadata):
    chunks = metadata.state_dict_metadata[EMBEDDING].chunks
    chunks.append(chunks[0])


def move_a_chunk(metadata):
    """A chunk one row lower, with its place: one row is covered twice, one not at all, and the bytes add up."""
    index = place_of(metadata, number=1)
    old = metadata.storage_data.pop(index)
    metadata.state_dict_metadata[EMBEDDING].chunks[1] = ChunkStorageMetadata(torch.Size([9, 0]), torch.Size([10, 8]))
    metadata.storage_data[MetadataIndex(EMBEDDING, torch.Size([9, 0]))] = old


def change_dtype(metadata):
    metadata.state_dict_metadata[EMBEDDING].properties.dtype = torch.float16


def grow(metadata):
    metadata.state_dict_metadata[EMBEDDING].size = torch.Size([38, 8])


def only_bytes(metadata):
    metadata.state_dict_metadata = {"step": BytesStorageMetadata()}


def lose_the_paths(metadata):
    metadata.plan_data = metadata.__dict__.pop("planner_data")


def sparse(metadata):
    metadata.state_dict_metadata[EMBEDDING].size = 5


BROKEN = {
    "leads out": (change_place(relative_path="../../config.json"), "outside itself"),
    "absolute": (change_place(relative_path="/etc/passwd"), "outside itself"),
    "no such file": (change_place(relative_path="__9_0.distcp"), "No such file"),
    "past the end": (change_place(offset=1 << 30), "cut short"),
    "no zip there": (change_place(relative_path=".metadata", offset=0, length=100), "malformed zip"),
    "negative": (change_place(offset=-1), "no file, offset and length"),
    "huge": (change_place(length=1 << 63), "an integer of|cut short"),
    "no number": (change_place(length="5"), "no file, offset and length"),
    "no path": (change_place(relative_path=None), "no file, offset and length"),
    "transformed": (change_place(transform_descriptors=["zstd"]), "through a transform"),
    "swapped": (swap_places, "is not the chunk"),
    "shared": (share_a_place, "in the same bytes"),
    "no place": (drop_a_place, "in no file"),
    "no chunk": (drop_a_chunk, "not whole"),
    "doubled chunk": (double_a_chunk, "overlap"),
    "moved chunk": (move_a_chunk, "overlap"),
    "other dtype": (change_dtype, "is not the chunk"),
    "other shape": (grow, "not whole"),
    "no tensors": (only_bytes, "no model tensors"),
    "no paths": (lose_the_paths, "no planner_data"),
    "no shape": (sparse, "where a shape must be"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_metadata_that_do_not_fit_the_files_are_refused(edited, what):
    change, reason = BROKEN[what]
    with pytest.raises(CheckpointError, match=reason) as caught:
        read(edited(WEIGHTS, change))
    assert "edited" in str(caught.value), "the file is named"


def test_unchanged_metadata_pass(edited):
    assert len(read(edited(WEIGHTS, lambda metadata: None))) == 6


@pytest.fixture
def copied(checkpoints, tmp_path):
    copy = tmp_path / "copied"
    shutil.copytree(checkpoints / WEIGHTS, copy)
    return copy


class Boom:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_the_metadata_does_not_run(copied, tmp_path):
    hostile = pickle.dumps(Boom(tmp_path / "ran"))
    (copied / ".metadata").write_bytes(hostile)
    with pytest.raises(CheckpointError, match=r"\.metadata: names posix\.mkdir"):
        read(copied)
    assert not (tmp_path / "ran").exists()


def test_code_beside_valid_metadata_does_not_run(edited, tmp_path):
    def change(metadata):
        metadata.storage_meta = Boom(tmp_path / "ran")

    with pytest.raises(CheckpointError, match="nothing was run"):
        read(edited(WEIGHTS, change))
    assert not (tmp_path / "ran").exists()


def test_code_in_an_item_does_not_run(copied, tmp_path):
    path = copied / "__0_0.distcp"
    data = path.read_bytes()
    assert b"ctorch\nBFloat16Storage\n" in data
    path.write_bytes(data.replace(b"ctorch\nBFloat16Storage\n", b"cpydoc\nbrowse\n#########\n"))
    with pytest.raises(CheckpointError):
        read(copied)


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_cut_file_is_refused(copied, keep):
    path = copied / "__2_0.distcp"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"__2_0\.distcp: is cut short"):
        read(copied)


def test_a_missing_rank_is_named(copied):
    (copied / "__3_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"__3_0\.distcp"):
        read(copied)


def test_metadata_without_end_are_not_read(copied, monkeypatch):
    monkeypatch.setattr(dcp, "MAX_METADATA_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100 expected"):
        read(copied)


@pytest.mark.parametrize("value", [None, 5, {"state_dict_metadata": {}}, []])
def test_other_pickles_are_no_metadata(copied, value):
    (copied / ".metadata").write_bytes(pickle.dumps(value))
    with pytest.raises(CheckpointError, match="where a Metadata must be"):
        read(copied)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_without_sums_is_read(tmp_path):
    options = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.distributed.checkpoint.save({"a": torch.arange(12.0)}, checkpoint_id=tmp_path / "plain", no_dist=True)
    finally:
        torch.serialization.set_crc32_options(options)
    assert read(tmp_path / "plain")["a"].chunks[0].crc32 is None
