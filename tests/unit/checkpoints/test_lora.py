import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.lora import build_adapter, split_adapter
from tuneline.checkpoints.tensors import F32, Tensor
from tuneline.core.errors import CheckpointError

PATH = "model.layers.0.self_attn"


def run(source, out, base, **arguments):
    return convert(source, out, base_dir=base, max_shard_bytes=1 << 40, **arguments)


def test_lora_weights_become_an_adapter_folder_as_peft_writes(checkpoints, tmp_path):
    done = run(checkpoints / "verl/lora", tmp_path, checkpoints / "base-bare")
    assert {file.path for file in done.files} == {"adapter_model.safetensors", "adapter_config.json"}
    saved, expected = load_file(done.folder / "adapter_model.safetensors"), load_file(checkpoints / "verl-lora.safetensors")
    assert set(saved) == {f"base_model.model.{PATH}.{module}.lora_{side}.weight" for module in ("q_proj", "o_proj") for side in "AB"}
    for name, tensor in saved.items():
        assert torch.equal(tensor, expected[name.replace(".weight", ".default.weight")])
    config = json.loads((done.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 6, "CAUSAL_LM")
    assert config["target_modules"] == ["o_proj", "q_proj"]


def merged(tensors, module, scale):
    path = f"base_model.model.{PATH}.{module}"
    low = tensors[f"{path}.lora_B.default.weight"] @ tensors[f"{path}.lora_A.default.weight"]
    return tensors[f"{path}.base_layer.weight"] + scale * low


@pytest.mark.parametrize(("alpha", "scale"), [(None, 3.0), (1.0, 0.5)])
def test_merging_adds_the_scaled_product(checkpoints, tmp_path, alpha, scale):
    done = run(checkpoints / "verl/lora", tmp_path, checkpoints / "base-bare", merge_lora=True, lora_alpha=alpha)
    tensors = load_file(checkpoints / "verl-lora.safetensors")
    saved = load_file(done.folder / "model.safetensors")
    assert set(saved) == {f"{PATH}.q_proj.weight", f"{PATH}.o_proj.weight", "model.norm.weight"}
    for module in ("q_proj", "o_proj"):
        torch.testing.assert_close(saved[f"{PATH}.{module}.weight"], merged(tensors, module, scale), rtol=1e-6, atol=1e-6)


def test_an_adapter_is_merged_into_its_base(checkpoints, tmp_path):
    adapter = run(checkpoints / "verl/lora", tmp_path / "a", checkpoints / "base-bare").folder
    whole = run(checkpoints / "verl/lora", tmp_path / "b", checkpoints / "base-bare", merge_lora=True)
    tensors = load_file(checkpoints / "verl-lora.safetensors")
    base = tmp_path / "base"
    shutil.copytree(checkpoints / "base-bare", base)
    plain = {name.removeprefix("base_model.model.").replace(".base_layer.", "."): t for name, t in tensors.items() if "lora" not in name}
    save_file(plain, base / "model.safetensors")
    done = run(adapter, tmp_path / "c", base, merge_lora=True)
    ours, theirs = load_file(done.folder / "model.safetensors"), load_file(whole.folder / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(CheckpointError, match="which neither it nor the base has"):
        run(adapter, tmp_path / "d", checkpoints / "base-bare", merge_lora=True)


def test_large_weights_are_merged_block_by_block(checkpoints, tmp_path):
    """Rows that blocks and windows do not divide."""
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(*shape, generator=generator) for shape in ((3001, 701), (4, 701), (3001, 4)))
    path = "base_model.model.model.layers.0.mlp.up_proj"
    folder = tmp_path / "global_step_1/actor"
    folder.mkdir(parents=True)
    tensors = {f"{path}.base_layer.weight": weight, f"{path}.lora_A.default.weight": a, f"{path}.lora_B.default.weight": b}
    torch.save(tensors, folder / "model_world_size_1_rank_0.pt")
    done = run(folder, tmp_path / "out", checkpoints / "base-bare", merge_lora=True, lora_alpha=8)
    (saved,) = load_file(done.folder / "model.safetensors").values()
    torch.testing.assert_close(saved, weight + 2 * (b @ a), rtol=1e-6, atol=1e-5)


def test_nothing_to_merge_is_an_error(checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="no LoRA weights to merge"):
        run(checkpoints / "verl/padded", tmp_path, checkpoints / "base-bare", merge_lora=True)


def pair(a=(2, 8), b=(16, 2), module="m.q_proj"):
    return {module: {"A": Tensor("a", F32, a, ()), "B": Tensor("b", F32, b, ())}}


@pytest.mark.parametrize(
    ("pairs", "recorded", "reason"),
    [
        ({"m": {"A": Tensor("a", F32, (2, 8), ())}}, {"lora_alpha": 1}, "only lora_A of m"),
        (pair(a=(3, 8)), {"lora_alpha": 1}, "shapes do not fit"),
        ({**pair(), **pair((4, 8), (16, 4), "m.o_proj")}, {"lora_alpha": 1}, "different ranks"),
        (pair(), {"r": 3, "lora_alpha": 1}, "rank 2, its adapter_config.json or lora_train_meta.json says 3"),
        (pair(), {}, "does not tell lora_alpha"),
        (pair(), {"lora_alpha": 0}, "does not tell lora_alpha"),
        (pair(), {"lora_alpha": "6"}, "does not tell lora_alpha"),
        (pair(), {"lora_alpha": 1, "use_dora": True}, "adapter with use_dora"),
    ],
)
def test_adapters_that_cannot_be(tmp_path, pairs, recorded, reason):
    (tmp_path / "lora_train_meta.json").write_text(json.dumps(recorded))
    with pytest.raises(CheckpointError, match=reason):
        build_adapter(pairs, Folder(tmp_path), [""], None, "x")


def test_rank_stabilized_adapters_scale_by_the_root(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4, "use_rslora": True}))
    assert build_adapter(pair(), Folder(tmp_path), [""], None, "x").scale == pytest.approx(4 / 2**0.5)


def test_names_are_split_with_and_without_an_adapter_name():
    names = ["base_model.model.m.q.lora_A.default.weight", "m.q.lora_B.weight", "m.q.weight", "m.lora_norm.weight"]
    plain, pairs = split_adapter([Tensor(name, F32, (1,), ()) for name in names])
    assert [tensor.name for tensor in plain] == ["m.q.weight", "m.lora_norm.weight"]
    assert {module: sorted(sides) for module, sides in pairs.items()} == {"m.q": ["A", "B"]}
