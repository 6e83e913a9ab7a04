"""Checkpoints by torch itself, for the tests: `python make_checkpoints.py FOLDER`. Four processes over gloo, then one.

v1/step_3/policy/weights            {"model": state} as NeMo RL v1, beside a policy/tokenizer/
v2/step_3/policy/weights/model      flat as NeMo RL v2
trl/step_7/weights                  flat as the trl engine, tied, config.json and tokenizer/ in step_7
untied/step_1/weights               as trl, but the head has diverged
mesh/weights                        a 2 x 2 mesh: every pair of placements
wide/weights                        rows of more than a block
large/step_1/weights                300 MB
<each>.safetensors                  the same tensors as torch's own loader reads them
base/, base-tied/                   base models that fit v1, v2 and trl, untied
"""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

WORLD = 4


def state():
    """Tensors of every dtype and of shapes that ranks do not divide evenly, with the placement of each (None: a plain tensor)."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "model.embed_tokens.weight": (random(37, 8, dtype=torch.bfloat16), Shard(0)),
        "model.layers.0.self_attn.q_proj.weight": (random(16, 8), Shard(0)),
        "model.layers.0.mlp.down_proj.weight": (random(8, 19, dtype=torch.bfloat16), Shard(1)),
        "model.layers.0.mlp.experts": (random(3, 10, 6, dtype=torch.float16), Shard(2)),
        "model.layers.0.norm.weight": (random(8), Replicate()),
        "model.norm.weight": (random(3, dtype=torch.float64), Shard(0)),  # fewer rows than ranks
        "model.one": (random(1, 5), Shard(0)),
        "model.int": (torch.randint(-(2**60), 2**60, (7, 2), generator=generator), Shard(0)),
        "model.bool": (torch.rand(9, generator=generator) > 0.5, Shard(0)),
        "model.byte": (torch.arange(11, dtype=torch.uint8), None),
        "model.fp8": (random(5, 4).to(torch.float8_e4m3fn), None),
        "model.scalar": (torch.tensor(3.25), None),
        "model.empty": (torch.empty(0, 4), None),
        "lm_head.weight": (random(37, 8, dtype=torch.bfloat16), Shard(0)),
    }


def tied_state(*, diverged):
    tensors = {name: pair for name, pair in state().items() if name.startswith(("lm_head", "model.embed", "model.layers"))}
    if not diverged:
        tensors["lm_head.weight"] = (tensors["model.embed_tokens.weight"][0].clone(), Shard(0))
    return tensors


def mesh_state():
    placements = (Replicate(), Shard(0), Shard(1), Shard(2))
    numbers = torch.arange(7 * 6 * 5, dtype=torch.float32).reshape(7, 6, 5)
    return {f"t{i}{j}": (numbers + 1000 * (4 * i + j), (a, b)) for i, a in enumerate(placements) for j, b in enumerate(placements)}


def wide_state():
    numbers = torch.arange(3 * 1400 * 301, dtype=torch.int32)
    return {
        "rows": (numbers.reshape(3, 1400, 301), Shard(0)),
        "middle": (numbers.reshape(3, 1400, 301), Shard(1)),
        "columns": (numbers.reshape(3, 1400, 301), Shard(2)),
        "long": (numbers, Shard(0)),
        "narrow": (numbers.reshape(-1, 3), Shard(1)),
    }


def distribute(tensors, mesh):
    def one(tensor, placement):
        if placement is None:
            return tensor
        return distribute_tensor(tensor, mesh, [placement] if not isinstance(placement, tuple) else placement, src_data_rank=None)

    return {name: one(tensor, placement) for name, (tensor, placement) in tensors.items()}


def run(rank, out, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    square = init_device_mesh("cpu", (2, 2))
    dcp.save({"model": distribute(state(), mesh), "step": 3}, checkpoint_id=out / "v1/step_3/policy/weights")
    dcp.save(distribute(state(), mesh), checkpoint_id=out / "v2/step_3/policy/weights/model")
    dcp.save(distribute(tied_state(diverged=False), mesh), checkpoint_id=out / "trl/step_7/weights")
    dcp.save(distribute(tied_state(diverged=True), mesh), checkpoint_id=out / "untied/step_1/weights")
    dcp.save(distribute(mesh_state(), square), checkpoint_id=out / "mesh/weights")
    dcp.save(distribute(wide_state(), mesh), checkpoint_id=out / "wide/weights")
    dist.destroy_process_group()


def expect(folder, file):
    """What torch's own loader reads from a DCP folder, in one safetensors file."""
    with tempfile.NamedTemporaryFile() as whole:
        dcp_to_torch_save(folder, whole.name)
        tensors = torch.load(whole.name, weights_only=True)
    tensors = tensors.get("model", tensors)
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)


def config(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 37, **values}, indent=1))
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')


def tokenizer(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"who": text}))
    (folder / "tokenizer_config.json").write_text("{}")


def main(out):
    warnings.filterwarnings("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=run, args=(rank, out, f"{folder}/store")) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed")
    zeros = {f"model.layers.{i}.weight": torch.full((2048, 1024 * 9), float(i)) for i in range(4)}
    dcp.save(zeros, checkpoint_id=out / "large/step_1/weights", no_dist=True)
    config(out / "large/step_1")
    for name, folder in {
        "v1": "v1/step_3/policy/weights",
        "v2": "v2/step_3/policy/weights/model",
        "trl": "trl/step_7/weights",
        "untied": "untied/step_1/weights",
        "mesh": "mesh/weights",
        "wide": "wide/weights",
    }.items():
        expect(out / folder, out / f"{name}.safetensors")
    tokenizer(out / "v1/step_3/policy/tokenizer", "v1")
    config(out / "trl/step_7", tie_word_embeddings=True, dtype="float32")
    tokenizer(out / "trl/step_7/tokenizer", "trl")
    config(out / "untied/step_1", tie_word_embeddings=True)
    config(out / "base", tie_word_embeddings=False, torch_dtype="bfloat16")
    tokenizer(out / "base", "base")
    save_file({name: torch.zeros_like(tensor) for name, (tensor, _) in state().items()}, out / "base/model.safetensors")
    config(out / "base-tied", tie_word_embeddings=True)
    tied = {name: torch.zeros_like(tensor) for name, (tensor, _) in tied_state(diverged=False).items() if name != "lm_head.weight"}
    save_file(tied, out / "base-tied/model.safetensors")
    config(out / "base-bare")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
