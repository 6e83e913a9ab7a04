import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tuneline.checkpoints import plan as planning
from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.folders import entries
from tuneline.checkpoints.safetensors import read_tensor
from tuneline.core.errors import CheckpointError
from tuneline.lineage.digests import content_digest

LARGE = 1 << 40


def tensors_of(*files):
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    return found


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(ours[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize(
    ("name", "source", "base", "max_shard_bytes", "files"),
    [
        ("v1", "v1/step_3", "base", LARGE, 1),
        ("v1", "v1/step_3/policy/weights", "base", 500, 7),
        ("v2", "v2/step_3", "base", 1200, 3),
        ("untied", "untied/step_1", "base-tied", 600, 5),
        ("mesh", "mesh", "base-bare", 2000, 8),
        ("wide", "wide", "base-bare", LARGE, 1),
    ],
)
def test_converted_weights_are_those_that_torch_reads(checkpoints, tmp_path, name, source, base, max_shard_bytes, files):
    done = convert(checkpoints / source, tmp_path, base_dir=checkpoints / base, max_shard_bytes=max_shard_bytes)
    shards = sorted(done.folder.glob("*.safetensors"))
    expected = tensors_of(checkpoints / f"{name}.safetensors")
    assert_equal(tensors_of(*shards), expected)
    assert len(shards) == files
    assert (done.folder / "model.safetensors.index.json").exists() == (files > 1)
    assert entries(Folder(done.folder)).keys() == expected.keys()
    assert done.parameters == sum(tensor.numel() for tensor in expected.values())


def test_the_result_describes_the_folder(checkpoints, tmp_path):
    done = convert(
        checkpoints / "v2/step_3", tmp_path, base_dir=checkpoints / "base", max_shard_bytes=1200, extra_files={"README.md": b"hello"}
    )
    assert done.folder == tmp_path / done.digest
    assert done.digest == content_digest(done.files)
    assert [file.path for file in done.files] == sorted(path.name for path in done.folder.iterdir())
    for file in done.files:
        content = (done.folder / file.path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size)
    assert done.bytes == sum(file.size for file in done.files)
    assert (done.folder / "README.md").read_bytes() == b"hello"
    assert [path.name for path in tmp_path.iterdir()] == [done.digest], "nothing else is left"


def test_a_tied_head_is_dropped_and_the_trainer_s_files_are_taken(checkpoints, tmp_path):
    done = convert(checkpoints / "trl/step_7", tmp_path, base_dir=checkpoints / "base-tied", max_shard_bytes=LARGE)
    expected = tensors_of(checkpoints / "trl.safetensors")
    del expected["lm_head.weight"]
    assert_equal(tensors_of(done.folder / "model.safetensors"), expected)
    config = json.loads((done.folder / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["dtype"]) == (True, "bfloat16"), "a loader must not cast the weights"
    assert json.loads((done.folder / "tokenizer.json").read_text()) == {"who": "trl"}


def test_a_head_that_has_diverged_is_kept_and_untied(checkpoints, tmp_path):
    done = convert(checkpoints / "untied/step_1", tmp_path, base_dir=checkpoints / "base-tied", max_shard_bytes=LARGE)
    assert "lm_head.weight" in entries(Folder(done.folder))
    assert json.loads((done.folder / "config.json").read_text())["tie_word_embeddings"] is False


def test_equal_weights_that_the_config_does_not_tie_are_both_kept(checkpoints, tmp_path):
    shutil.copytree(checkpoints / "trl/step_7", tmp_path / "step")
    config = {"model_type": "qwen2", "tie_word_embeddings": False, "dtype": "bfloat16"}
    (tmp_path / "step/config.json").write_text(json.dumps(config))
    done = convert(tmp_path / "step", tmp_path / "out", base_dir=checkpoints / "base-tied", max_shard_bytes=LARGE)
    assert_equal(tensors_of(done.folder / "model.safetensors"), tensors_of(checkpoints / "trl.safetensors"))
    assert json.loads((done.folder / "config.json").read_text()) == config


@pytest.mark.parametrize(("policy", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_floats_are_cast_and_nothing_else(checkpoints, tmp_path, policy, dtype):
    done = convert(checkpoints / "v1/step_3", tmp_path, base_dir=checkpoints / "base", max_shard_bytes=LARGE, dtype=policy)
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    expected = tensors_of(checkpoints / "v1.safetensors")
    assert_equal(
        tensors_of(done.folder / "model.safetensors"),
        {name: tensor.to(dtype) if tensor.dtype in floats else tensor for name, tensor in expected.items()},
    )
    assert json.loads((done.folder / "config.json").read_text())["torch_dtype"] == str(dtype).removeprefix("torch.")


def test_the_number_of_threads_changes_nothing(checkpoints, tmp_path):
    arguments = {"base_dir": checkpoints / "base-bare", "max_shard_bytes": LARGE}
    digests = {convert(checkpoints / "wide", tmp_path / str(threads), threads=threads, **arguments).digest for threads in (1, 3, 8)}
    assert len(digests) == 1


def test_a_head_that_only_looks_equal_is_found_out_while_writing(checkpoints, tmp_path, monkeypatch):
    arguments = {"base_dir": checkpoints / "base-tied", "max_shard_bytes": 600}
    right = convert(checkpoints / "untied/step_1", tmp_path / "a", **arguments)
    calls = []
    monkeypatch.setattr(planning, "look_equal", lambda first, second: calls.append(first.name) or True)
    assert convert(checkpoints / "untied/step_1", tmp_path / "b", **arguments).digest == right.digest
    assert calls == ["lm_head.weight"], "it is not asked a second time"


def test_finish_sees_the_whole_folder_and_may_add_the_sidecar(checkpoints, tmp_path):
    seen = []

    def finish(folder, files):
        seen.append({path.name for path in folder.iterdir()} == {file.path for file in files})
        assert folder.parent.parent == tmp_path
        (folder / "lineage.json").write_text("{}")

    def run():
        return convert(checkpoints / "mesh", tmp_path, base_dir=checkpoints / "base-bare", max_shard_bytes=LARGE, finish=finish)

    first, second = run(), run()
    assert first == second
    assert (first.folder / "lineage.json").exists()
    assert seen == [True], "a folder that is there already is verified, not written again"


def spoil_bytes(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_bytes, "model.safetensors has other bytes"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_bytes(b"{}"), "config.json has 2 bytes"),
        (lambda folder: (folder / "extra").touch(), "extra does not belong there"),
    ],
)
def test_a_published_folder_that_was_changed_is_not_reused(checkpoints, tmp_path, spoil, reason):
    def run():
        return convert(checkpoints / "mesh", tmp_path, base_dir=checkpoints / "base-bare", max_shard_bytes=LARGE)

    spoil(run().folder)
    with pytest.raises(CheckpointError, match="was changed since") as caught:
        run()
    assert reason in caught.value.found


def fail(folder, files):
    raise RuntimeError("no lineage")


@pytest.mark.parametrize(
    ("values", "error", "reason"),
    [
        ({"finish": fail}, RuntimeError, "no lineage"),
        ({"dtype": "int4"}, CheckpointError, "no policy 'int4'"),
        ({"max_shard_bytes": 0}, CheckpointError, "must be positive"),
        ({"base_dir": Path("/nonexistent")}, CheckpointError, "is no folder"),
        ({"extra_files": {"../x": b""}}, CheckpointError, "extra file"),
        ({"extra_files": {"/x": b""}}, CheckpointError, "extra file"),
        ({"extra_files": {"config.json": b""}}, CheckpointError, "extra file"),
        ({"extra_files": {"model.safetensors": b""}}, CheckpointError, "extra file"),
        ({"extra_files": {"lineage.json": b""}}, CheckpointError, "extra file"),
        ({"extra_files": {"config.json/x": b""}}, CheckpointError, "extra file"),
    ],
)
def test_a_failure_leaves_nothing(checkpoints, tmp_path, values, error, reason):
    arguments = {"base_dir": checkpoints / "base-bare", "max_shard_bytes": LARGE, **values}
    with pytest.raises(error, match=reason):
        convert(checkpoints / "mesh", tmp_path / "out", **arguments)
    assert not list((tmp_path / "out").glob("*") if (tmp_path / "out").exists() else [])
    assert not list((tmp_path / "out").glob(".*") if (tmp_path / "out").exists() else [])


def test_the_base_must_be_the_one_that_was_trained(checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="does not hold the tensors of the base model"):
        convert(checkpoints / "trl/step_7", tmp_path, base_dir=checkpoints / "base", max_shard_bytes=LARGE)


def test_a_flipped_bit_of_a_weight_is_found(checkpoints, tmp_path):
    """torch loads such a file without a word."""
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / "trl/step_7", copy)
    weight = read_tensor(checkpoints / "trl.safetensors", "model.layers.0.self_attn.q_proj.weight")
    path = copy / "weights/__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(weight[4:8].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: the bytes of model\.layers\.0\.self_attn\.q_proj\.weight .* are damaged"):
        convert(copy, tmp_path / "out", base_dir=checkpoints / "base-tied", max_shard_bytes=LARGE)
    assert not list((tmp_path / "out").iterdir())


def mutate(chooser, folder):
    """Damage one file of a DCP folder; returns it and its old content."""
    path = chooser.choice(sorted(folder.iterdir()))
    old = path.read_bytes()
    data = bytearray(old)
    at, other = chooser.randrange(len(data)), chooser.randrange(len(data))
    match chooser.randrange(8):
        case 0 | 1 | 2:
            data[at] ^= 1 << chooser.randrange(8)
        case 3:
            data[at] = chooser.choice([0, 1, 0x7F, 0x80, 0xFF])
        case 4:
            del data[at:]
        case 5:
            del data[at : at + chooser.randrange(1, 9)]
        case 6:
            data[at:at] = data[other : other + chooser.randrange(1, 9)]
        case 7:
            size = chooser.randrange(1, 64)
            data[at : at + size] = data[other : other + size]
    path.write_bytes(data)
    return path, old


def test_damaged_checkpoints_are_refused_or_give_the_same_bytes(checkpoints, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / "trl/step_7", copy)

    def run():
        return convert(copy, tmp_path / "out", base_dir=checkpoints / "base-tied", max_shard_bytes=LARGE).digest

    right = run()
    refusals = []
    chooser = random.Random(7)
    for _ in range(120):
        path, old = mutate(chooser, copy / "weights")
        try:
            assert run() == right, f"{path} was damaged, and other bytes came out"
        except CheckpointError as error:
            refusals.append(error.message)
        finally:
            path.write_bytes(old)
    assert len(refusals) > 60
    assert all(str(copy) in refusal for refusal in refusals), "each names the file"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [right]


def test_memory_does_not_grow_with_the_model(checkpoints, tmp_path):
    script = """
import resource, sys
from pathlib import Path
from tuneline.checkpoints.convert import convert
def run(name, base):
    convert(Path(sys.argv[1]) / name, Path(sys.argv[2]), base_dir=Path(sys.argv[1]) / base, max_shard_bytes=1 << 40)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
small = run("trl/step_7", "base-tied")
print((run("large/step_1", "base-bare") - small) // 1024)
assert "torch" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script, checkpoints, tmp_path], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48, "MiB for a model of 288 MiB"
