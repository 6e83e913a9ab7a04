import json
import logging
import os

import pytest
import torch
from safetensors.torch import save_file

from tuneline.checkpoints import huggingface
from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.folders import entries
from tuneline.checkpoints.huggingface import adapt_config, check_shapes, companion_files, tied_pair, ties_embeddings
from tuneline.checkpoints.tensors import BF16, F32, Tensor
from tuneline.core.errors import CheckpointError


def check_against_base(tensors, base, **arguments):
    known = {name: entry for name, (_, entry) in entries(Folder(base)).items()}
    huggingface.check_against_base(tensors, known, str(base), "x", **arguments)


def tensor(name, shape=(2, 3)):
    return Tensor(name, F32, shape, ())


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "tokenizer.json").write_text("base")
    (folder / "vocab.json").write_text("base")
    (folder / "generation_config.json").write_text("base")
    return folder


def test_the_checkpoint_s_files_come_first_and_a_tokenizer_is_not_mixed(base, tmp_path):
    step = tmp_path / "step_1"
    (step / "tokenizer").mkdir(parents=True)
    (step / "config.json").write_text('{"model_type": "ours"}')
    (step / "tokenizer" / "tokenizer.json").write_text("ours")
    (step / "tokenizer" / "chat_template.jinja").write_text("ours")
    (step / "trainer_state.json").write_text("{}")
    files = companion_files(Folder(tmp_path), ["step_1", "step_1/tokenizer"], Folder(base))
    assert files == {
        "config.json": b'{"model_type": "ours"}',
        "generation_config.json": b"base",
        "tokenizer.json": b"ours",
        "chat_template.jinja": b"ours",
    }


def test_the_base_fills_in(base, tmp_path):
    files = companion_files(Folder(tmp_path), [], Folder(base, trusted=True))
    assert set(files) == {"config.json", "generation_config.json", "tokenizer.json", "vocab.json"}


def test_a_config_of_something_else_is_passed_over(base, tmp_path):
    step = tmp_path / "step_1"
    step.mkdir()
    (step / "config.json").write_text('{"grpo": {}}')
    assert companion_files(Folder(step), [""], Folder(base))["config.json"] == b'{"model_type": "qwen2"}'


def test_no_config_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        companion_files(Folder(tmp_path), [], Folder(tmp_path))


@pytest.mark.parametrize("content", [b"", b"[]", b"{" * 10_000, b"[" * 100_000, b"\xff"])
def test_a_broken_config_is_refused(base, content, tmp_path):
    (base / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: is no JSON"):
        companion_files(Folder(tmp_path), [], Folder(base, trusted=True))


def test_links_out_of_a_checkpoint_are_refused_but_a_base_may_be_made_of_them(base, tmp_path):
    step, cache = tmp_path / "step_1", tmp_path / "cache"
    for folder in (step, cache):
        folder.mkdir()
        for name in ("config.json", "tokenizer.json"):
            os.symlink(base / name, folder / name)
    assert companion_files(Folder(tmp_path), [], Folder(cache, trusted=True))["tokenizer.json"] == b"base"
    with pytest.raises(CheckpointError, match="link that leads out"):
        companion_files(Folder(step), [""], Folder(base))


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, False),
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({"text_config": None}, False),
    ],
)
def test_whether_a_config_ties(config, tied):
    assert ties_embeddings(config) is tied


def test_the_pair_that_may_be_tied():
    head, embedding = tensor("lm_head.weight"), tensor("model.embed_tokens.weight")
    assert tied_pair([tensor("x"), embedding, head]) == (head, embedding)
    assert tied_pair([embedding]) is None
    assert tied_pair([head, tensor("reembed_tokens.weight")]) is None
    assert tied_pair([head, embedding, tensor("vision.embed_tokens.weight")]) is None


def test_the_config_is_changed_only_where_it_must_be():
    content = (
        b'{"torch_dtype": "bfloat16", "tie_word_embeddings": true,   "text_config": {"dtype": "float32", "tie_word_embeddings": true}}'
    )
    plain = b'{"dtype":   "float32"}'
    assert adapt_config(plain, untie=False, dtype=F32) is plain
    assert adapt_config(plain, untie=False, dtype=None) is plain
    assert json.loads(adapt_config(content, untie=True, dtype=BF16)) == {
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {"dtype": "bfloat16", "tie_word_embeddings": False},
    }
    assert json.loads(adapt_config(b"{}", untie=True, dtype=F32)) == {"tie_word_embeddings": False, "torch_dtype": "float32"}
    assert json.loads(adapt_config(content, untie=False, dtype=F32))["tie_word_embeddings"] is True


@pytest.fixture
def weights(base):
    names = ["model.embed_tokens.weight", "model.norm.weight", "model.a", "model.b"]
    save_file({name: torch.zeros(2, 3) for name in names}, base / "model.safetensors")
    return names


def test_the_same_tensors_pass_with_or_without_a_head(base, weights):
    check_against_base([tensor(name) for name in weights], base)
    check_against_base([tensor(name) for name in [*weights, "lm_head.weight"]], base)


def test_all_differences_are_listed(base, weights):
    ours = [tensor(weights[0], (3, 3)), tensor(weights[1]), tensor(weights[2]), tensor("model.c")]
    with pytest.raises(CheckpointError) as caught:
        check_against_base(ours, base)
    assert caught.value.found == ("model.b is missing; model.c is not in the base; model.embed_tokens.weight is [3, 3], in the base [2, 3]")


def test_other_naming_is_taken_as_it_is_and_said(base, weights, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tuneline"), "propagate", True)
    check_against_base([tensor(f"language_{name}") for name in weights], base)
    assert "another way" in caplog.text


def test_a_base_without_safetensors_says_nothing(base):
    check_against_base([tensor("x")], base)


def test_shapes_that_only_parts_suggest_need_a_base_that_confirms_them(base, weights):
    ours = [tensor(name) for name in weights]
    check_against_base(ours, base, needed=True)
    with pytest.raises(CheckpointError, match="does not record whole shapes"):
        check_against_base([tensor("x" + name) for name in weights], base, needed=True)
    os.remove(base / "model.safetensors")
    with pytest.raises(CheckpointError, match="does not record whole shapes"):
        check_against_base(ours, base, needed=True)


@pytest.mark.parametrize(
    ("config", "faults"),
    [
        ({}, []),
        ({"vocab_size": 9, "hidden_size": 3, "num_hidden_layers": 2}, []),
        ({"text_config": {"vocab_size": 9, "hidden_size": 3}, "num_hidden_layers": 7}, []),
        ({"vocab_size": 10}, ["model.embed_tokens.weight is [9, 3]", "lm_head.weight is [9, 3]", "10 tokens"]),
        ({"hidden_size": 4}, ["model.embed_tokens.weight is [9, 3]"]),
        ({"num_hidden_layers": 3}, ["layers 0-1 (2) are there, the config says 3"]),
        ({"num_hidden_layers": 1}, ["layers 0-1 (2) are there, the config says 1"]),
    ],
)
def test_the_config_tells_vocabulary_width_and_layers(config, faults):
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    tensors = [tensor(name, (9, 3)) for name in names] + [tensor(f"model.layers.{layer}.x") for layer in (0, 1)]
    tensors.append(tensor("vision_tower.encoder.layers.5.x"))
    if not faults:
        check_shapes(tensors, config, "x")
        return
    with pytest.raises(CheckpointError, match=r"does not fit its config\.json") as caught:
        check_shapes(tensors, config, "x")
    assert all(fault in caught.value.found for fault in faults)
