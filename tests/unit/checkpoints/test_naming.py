import itertools
import logging
import zlib

import numpy as np
import pytest

from tests.unit.checkpoints.test_writer import Memory
from tuneline.checkpoints.blocks import Blocks
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.naming import float32_names, model_names, plain_names
from tuneline.checkpoints.tensors import F32, Chunk, Tensor
from tuneline.core.errors import CheckpointError


def tensor(name, shape=(2, 3)):
    return Tensor(name, F32, shape, (), origin=name)


def renamed(names, model_type, base=()):
    return [each.name for each in model_names([tensor(name) for name in names], {"model_type": model_type}, base, "x")]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_orig_mod.model.a", "model.a"),
        ("_fsdp_wrapped_module.model._checkpoint_wrapped_module.a", "model.a"),
        ("base_model.model.model.layers.0.q_proj.base_layer.weight", "model.layers.0.q_proj.weight"),
        ("model.my_orig_mod.a", "model.my_orig_mod.a"),
    ],
)
def test_what_wrappers_add_is_removed(name, plain):
    assert [each.name for each in plain_names([tensor(name)])] == [plain]


def test_names_that_become_one_are_refused():
    with pytest.raises(CheckpointError, match=r"are both model\.a"):
        plain_names([tensor("_orig_mod.model.a"), tensor("model.a")])


MEMORY = ["lm_head.weight", "model.language_model.norm.weight", "model.multi_modal_projector.x", "model.vision_tower.encoder.x"]
HUB = [
    "language_model.lm_head.weight",
    "language_model.model.norm.weight",
    "multi_modal_projector.x",
    "vision_tower.vision_model.encoder.x",
]
SHORT = [*HUB[:3], "vision_tower.encoder.x"]


@pytest.mark.parametrize(
    ("names", "base", "expected"),
    [(MEMORY, (), HUB), (MEMORY, HUB, HUB), (MEMORY, SHORT, SHORT), (MEMORY, MEMORY, MEMORY), (HUB, HUB, HUB), (HUB, (), HUB)],
)
def test_gemma_3_is_named_as_its_base_is(names, base, expected):
    assert renamed(names, "gemma3", base) == sorted(expected)


def test_an_unknown_architecture_keeps_its_names_and_the_log_says_so(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tuneline"), "propagate", True)
    assert renamed(["b", "a"], "mamba9") == ["a", "b"]
    assert "'mamba9' is no architecture with rules" in caplog.text


def fused(cuts):
    """[3, 8, 5] in chunks cut along one dimension."""
    axis, edges = cuts
    array = np.arange(120, dtype=np.float32).reshape(3, 8, 5)
    data, chunks, blob = b"", [], Memory(b"")
    for first, last in itertools.pairwise(edges):
        part = np.take(array, range(first, last), axis)
        offsets = tuple(first if each == axis else 0 for each in range(3))
        chunks.append(Chunk(offsets, part.shape, blob, len(data), zlib.crc32(part.tobytes())))
        data += part.tobytes()
    blob.data, blob.size = np.frombuffer(data, np.uint8), len(data)
    return array, tuple(chunks)


@pytest.mark.parametrize("cuts", [(0, (0, 3)), (0, (0, 1, 3)), (1, (0, 3, 8)), (1, (0, 4, 8)), (2, (0, 2, 5))])
@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
def test_fused_experts_are_split_however_they_were_sharded(cuts, part):
    array, chunks = fused(cuts)
    whole = Tensor(f"model.layers.0.mlp.experts.{part}", F32, array.shape, chunks)
    split = model_names([whole], {"model_type": "qwen3_moe"}, (), "x")
    assert len(split) == (6 if part == "gate_up_proj" else 3)
    for each in split:
        check_cover(each)
        expert, kind = int(each.name.split(".")[5]), each.name.split(".")[6]
        rows = {"down_proj": slice(0, 8), "gate_proj": slice(0, 4), "up_proj": slice(4, 8)}[kind]
        blocks, out = Blocks(each), np.zeros(each.nbytes, np.uint8)
        for block in blocks:
            blocks.read(block, F32, out[block.start * 4 : (block.start + block.numel) * 4], Room())
        assert np.array_equal(out.view(np.float32).reshape(each.shape), array[expert, rows])


def test_a_base_with_fused_experts_keeps_them_fused():
    name = "model.layers.0.mlp.experts.down_proj"
    assert renamed([name], "qwen3_moe", [name]) == [name]


def test_odd_experts_are_refused():
    with pytest.raises(CheckpointError, match="no row of experts"):
        model_names([tensor("model.layers.0.mlp.experts.gate_up_proj", (2, 3, 4))], {"model_type": "qwen3_moe"}, (), "x")


NAMES = [
    "model.norm.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.gate_proj.weight",
]


@pytest.mark.parametrize(
    ("rules", "model_type", "kept"),
    [
        ((), "qwen3_moe", []),
        (("norms",), "qwen2", NAMES[:2]),
        (("router",), "qwen3_moe", NAMES[2:3]),
        (("router",), "qwen2", []),
        (("router",), "mamba9", NAMES[2:3]),
        ((r"layers\.0\.", "norms"), "qwen2", NAMES),
    ],
)
def test_what_stays_float32(rules, model_type, kept):
    assert float32_names(NAMES, rules, {"model_type": model_type}) == set(kept)


def test_a_rule_that_is_no_expression_is_refused():
    with pytest.raises(CheckpointError, match="no regular expression"):
        float32_names(NAMES, ("(",), {})
