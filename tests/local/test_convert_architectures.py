"""Tiny random models of every architecture: saved as trainers hold them, converted, and loaded by transformers with equal weights."""

import copy
import json
import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.check_weights import check_weights
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.folders import entries
from tuneline.core.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "head_dim": 8,
}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def build(name):
    torch.manual_seed(1)
    match name:
        case "llama":
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        case "qwen2":
            return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES))
        case "qwen2-tied":
            return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, tie_word_embeddings=True))
        case "qwen3":
            return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES))
        case "qwen3_moe":
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
            return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **experts))
        case "gemma3_text":
            return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SIZES))
        case "gemma3":
            config = transformers.Gemma3Config(
                text_config=transformers.Gemma3TextConfig(**SIZES).to_dict(), vision_config=VISION, mm_tokens_per_image=1
            )
            return transformers.Gemma3ForConditionalGeneration(config)


ARCHITECTURES = ("llama", "qwen2", "qwen2-tied", "qwen3", "qwen3_moe", "gemma3_text", "gemma3")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, tmp_path_factory):
    """(name, the trained model, folder with its base and its checkpoint as a trainer's state dict)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = build(request.param)
    model.save_pretrained(folder / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    dcp.save(state, checkpoint_id=folder / "step_1/weights", no_dist=True)
    return request.param, model, folder


def test_the_output_loads_with_the_trained_weights(model, tmp_path):
    name, trained, folder = model
    done = convert(folder / "step_1", tmp_path, base_dir=folder / "base", max_shard_bytes=20_000)
    loaded, report = type(trained).from_pretrained(done.folder, output_loading_info=True)
    assert not report["missing_keys"], name
    assert not report["unexpected_keys"], name
    assert not report["mismatched_keys"], name
    ours, theirs = loaded.state_dict(), trained.state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_names_and_shapes_are_those_of_the_base_and_the_index_is_complete(model, tmp_path):
    """What vLLM's loader needs: it iterates over the files in the index and maps published names."""
    _, _, folder = model
    done = convert(folder / "step_1", tmp_path, base_dir=folder / "base", max_shard_bytes=20_000)
    ours = {name: entry.shape for name, (_, entry) in entries(Folder(done.folder)).items()}
    base = {name: entry.shape for name, (_, entry) in entries(Folder(folder / "base")).items()}
    assert ours == base
    index = json.loads((done.folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in done.folder.glob("*.safetensors")}
    assert check_weights(done.folder, base=folder / "base").faults == []


def test_a_base_without_weights_gives_the_published_names_all_the_same(model, tmp_path):
    name, trained, folder = model
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "base/config.json").read_bytes())
    done = convert(folder / "step_1", tmp_path, base_dir=bare, max_shard_bytes=1 << 40)
    loaded = type(trained).from_pretrained(done.folder).state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in trained.state_dict().items())
    if name == "qwen3_moe":
        assert "model.layers.0.mlp.experts.3.up_proj.weight" in load_file(done.folder / "model.safetensors")


def test_dtypes_like_the_base_and_exceptions(model, tmp_path):
    name, trained, folder = model
    half = tmp_path / "half"
    copy.deepcopy(trained).to(torch.bfloat16).save_pretrained(half)
    like = convert(folder / "step_1", tmp_path / "a", base_dir=half, max_shard_bytes=1 << 40, dtype="like-base")
    assert {tensor.dtype for tensor in load_file(like.folder / "model.safetensors").values()} == {torch.bfloat16}
    kept = convert(
        folder / "step_1", tmp_path / "b", base_dir=folder / "base", max_shard_bytes=1 << 40, dtype="bf16", fp32=("norms", "router")
    )
    wide = {key for key, tensor in load_file(kept.folder / "model.safetensors").items() if tensor.dtype == torch.float32}
    assert wide
    assert all("norm" in key or (name == "qwen3_moe" and key.endswith("mlp.gate.weight")) for key in wide)
    assert any(key.endswith("mlp.gate.weight") for key in wide) == (name == "qwen3_moe")


def test_the_wrong_vocabulary_is_refused(model, tmp_path):
    _, _, folder = model
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((folder / "base/config.json").read_text())
    config.get("text_config", config)["vocab_size"] = 65
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"does not fit its config\.json"):
        convert(folder / "step_1", tmp_path / "out", base_dir=other, max_shard_bytes=1 << 40)
    assert not os.listdir(tmp_path / "out") if (tmp_path / "out").exists() else True


def test_wrappers_in_names_are_removed(model, tmp_path):
    name, trained, folder = model
    state = {f"_orig_mod._fsdp_wrapped_module.{key}": tensor.clone() for key, tensor in trained.state_dict().items()}
    dcp.save(state, checkpoint_id=tmp_path / "step_1/weights", no_dist=True)
    plain = convert(folder / "step_1", tmp_path / "a", base_dir=folder / "base", max_shard_bytes=1 << 40)
    assert convert(tmp_path / "step_1", tmp_path / "b", base_dir=folder / "base", max_shard_bytes=1 << 40).digest == plain.digest, name
