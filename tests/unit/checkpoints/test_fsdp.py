import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.fsdp import read_fsdp
from tuneline.checkpoints.mesh import Mesh, Placement, local_box, mesh_from_layout, mesh_from_ranks, placement_of
from tuneline.checkpoints.pickles import Record
from tuneline.core.errors import CheckpointError

KINDS = ("fsdp2", "padded", "hsdp", "tp", "fsdp1", "plain")
ACTOR = "global_step_1/actor"


def weights(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(load_file(path))
    return found


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(ours[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("kind", KINDS)
def test_what_ranks_saved_is_put_together(checkpoints, tmp_path, kind):
    done = convert(checkpoints / "verl" / kind, tmp_path, base_dir=checkpoints / "base-bare", max_shard_bytes=500)
    assert (done.kind, done.step) == ("verl fsdp", 1)
    assert_equal(weights(done.folder), load_file(checkpoints / f"verl-{kind}.safetensors"))


def test_bf16_is_what_verl_s_merger_gives(checkpoints, tmp_path):
    """verl 0.9.1: every local tensor .bfloat16(), then torch.cat; bench/convert.py compares with the merger itself."""
    done = convert(checkpoints / "verl/fsdp2", tmp_path, base_dir=checkpoints / "base-bare", max_shard_bytes=1 << 40, dtype="bf16")
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    expected = load_file(checkpoints / "verl-fsdp2.safetensors")
    assert_equal(weights(done.folder), {name: t.bfloat16() if t.dtype in floats else t for name, t in expected.items()})


@pytest.fixture
def actor(checkpoints, tmp_path):
    """Copies an actor folder that may be changed."""

    def copy(kind):
        shutil.copytree(checkpoints / "verl" / kind / ACTOR, tmp_path / "actor")
        return tmp_path / "actor"

    return copy


def read(folder):
    with Folder(folder) as tree:
        tensors = read_fsdp(tree)
        for tensor in tensors:
            check_cover(tensor)
    return tensors


def test_a_missing_rank_is_named(actor):
    folder = actor("hsdp")
    (folder / "model_world_size_4_rank_2.pt").unlink()
    with pytest.raises(CheckpointError, match="is not whole") as caught:
        read(folder)
    assert "model_world_size_4_rank_2.pt" in caught.value.found


def test_leftovers_of_another_world_size_need_the_config_to_choose(actor):
    folder = actor("fsdp2")
    shutil.copy(folder / "model_world_size_4_rank_0.pt", folder / "model_world_size_8_rank_0.pt")
    assert read(folder)
    (folder / "fsdp_config.json").unlink()
    with pytest.raises(CheckpointError, match="several world sizes") as caught:
        read(folder)
    assert caught.value.choices == ("4", "8")


def test_a_config_that_says_another_world_size_is_refused(actor):
    folder = actor("fsdp2")
    (folder / "fsdp_config.json").write_text(json.dumps({"world_size": 8}))
    with pytest.raises(CheckpointError, match="is not whole"):
        read(folder)


def plain_ranks(folder, *ranks, crc=True):
    folder.mkdir()
    torch.serialization.set_crc32_options(crc)
    try:
        for rank, tensors in enumerate(ranks):
            torch.save(tensors, folder / f"model_world_size_{len(ranks)}_rank_{rank}.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    return folder


@pytest.mark.parametrize("crc", [True, False])
def test_copies_are_compared_by_sum_or_by_bytes(tmp_path, crc):
    same = {"buffer": torch.arange(1000.0)}
    other = {"buffer": torch.arange(1000.0)}
    other["buffer"][-1] = 5
    assert len(read(plain_ranks(tmp_path / "a", same, same, crc=crc))) == 1
    with pytest.raises(CheckpointError, match="is replicated, but its copies differ"):
        read(plain_ranks(tmp_path / "b", same, other, crc=crc))


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([{"a": torch.ones(2)}, {"b": torch.ones(2)}], "only some of the 2 ranks"),
        ([{"a": torch.ones(2)}, {"a": torch.ones(3)}], "in different ways"),
        ([{"a": torch.ones(2)}, {"a": torch.ones(2).half()}], "in different ways"),
        ([[torch.ones(2)]], "where a state dict must be"),
        ([{"a": 5}], "where a tensor must be"),
        ([{5: torch.ones(2)}], "a tensor named 5"),
        ([{"a": torch.ones(4, 6).t()}], "not contiguous"),
        ([{}], "no tensors"),
        ([{f"t{i}": tensor for i, tensor in enumerate([torch.ones(3000)] * 9)}], "describes 108000 bytes"),
    ],
)
def test_what_cannot_be(tmp_path, ranks, reason):
    with pytest.raises(CheckpointError, match=reason):
        read(plain_ranks(tmp_path / "x", *ranks))


def test_code_in_a_rank_s_pickle_does_not_run(tmp_path):
    class Boom:
        def __reduce__(self):
            return (shutil.rmtree, (str(tmp_path / "precious"),))

    (tmp_path / "precious").mkdir()
    with pytest.raises(CheckpointError, match=r"names shutil\.rmtree.* nothing was run"):
        read(plain_ranks(tmp_path / "x", {"a": Boom()}))
    assert (tmp_path / "precious").exists()


def test_views_of_one_storage_are_parts_of_it(tmp_path):
    whole = torch.arange(10.0)
    folder = plain_ranks(tmp_path / "x", {"first": whole[:4], "last": whole[4:]})
    done = convert(folder, tmp_path / "out", base_dir=_base(tmp_path), max_shard_bytes=1 << 20)
    assert_equal(weights(done.folder), {"first": whole[:4], "last": whole[4:]})


def _base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


@pytest.mark.parametrize(
    ("shape", "placements", "mesh", "box"),
    [
        ((10, 4), (Placement(0),), Mesh((4,), (3,)), ((9, 0), (1, 4))),
        ((2, 4), (Placement(0),), Mesh((4,), (3,)), ((2, 0), (0, 4))),
        ((8, 6), (Placement(0), Placement(1)), Mesh((2, 2), (1, 0)), ((4, 0), (4, 3))),
        ((8, 6), (Placement(0), Placement(0)), Mesh((2, 2), (1, 0)), ((4, 0), (2, 6))),
        ((8, 6), (Placement(0, strided=True), Placement(0)), Mesh((2, 2), (1, 0)), ((2, 0), (2, 6))),
        ((8, 6), (Placement(None), Placement(1)), Mesh((2, 2), (1, 1)), ((0, 3), (8, 3))),
    ],
)
def test_the_box_of_a_rank(shape, placements, mesh, box):
    assert local_box(shape, placements, mesh) == box


def axis(shape, stride):
    record = Record("x", ())
    record.state = {"shape": shape, "stride": stride}
    return record


def test_where_a_rank_is_in_its_mesh():
    assert mesh_from_ranks([0, 2, 1, 3], (2, 2), 2, "x") == Mesh((2, 2), (0, 1))
    assert mesh_from_layout((axis((2,), (2,)), axis((2,), (1,))), [0, 1, 2, 3], 2, "x") == Mesh((2, 2), (1, 0))
    assert mesh_from_layout((axis((2,), (1,)),), [0, 1, 2, 3], 3, "x") == Mesh((2,), (1,)), "a row of a larger mesh"
    assert mesh_from_layout((axis((), ()), axis((2,), (1,))), [0, 1], 1, "x") == Mesh((1, 2), (0, 1))
    for ranks, shape in (([0, 1], (3,)), ([0, 0], (2,)), ([5, 6], (2,))):
        with pytest.raises(CheckpointError, match="device mesh"):
            mesh_from_ranks(ranks, shape, 0, "x")
    for axes in (5, (5,), (axis((0,), (1,)),), (axis((2,), ()),)):
        with pytest.raises(CheckpointError, match="device mesh"):
            mesh_from_layout(axes, [0, 1], 0, "x")


def test_partial_sums_and_odd_dimensions_are_no_placements():
    partial = Record("torch.distributed.tensor.placement_types.Partial", ())
    shard = Record("torch.distributed.tensor.placement_types.Shard", ())
    shard.state = {"dim": 2}
    for value in (partial, shard, 5, None):
        with pytest.raises(CheckpointError, match="where a placement"):
            placement_of(value, 2, "x")
    assert placement_of(shard, 3, "x") == Placement(2)


def test_a_base_that_fits_is_checked(checkpoints, tmp_path):
    base = _base(tmp_path)
    save_file({"other": torch.ones(2), "0.weight": torch.ones(7, 5), "0.bias": torch.ones(7)}, base / "model.safetensors")
    with pytest.raises(CheckpointError, match="does not hold the tensors"):
        convert(checkpoints / "verl/padded", tmp_path / "out", base_dir=base, max_shard_bytes=500)
