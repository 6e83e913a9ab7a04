"""Checkpoints by torch itself, for the tests: `python make_checkpoints.py FOLDER`. Four processes over gloo, then one.

v1/step_3/policy/weights            {"model": state} as NeMo RL v1, beside a policy/tokenizer/
v2/step_3/policy/weights/model      flat as NeMo RL v2
trl/step_7/weights                  flat as the trl engine, tied, config.json and tokenizer/ in step_7
untied/step_1/weights               as trl, but the head has diverged
mesh/weights                        a 2 x 2 mesh: every pair of placements
wide/weights                        rows of more than a block
large/step_1/weights                300 MB
sharded/step_2/policy/weights/model safetensors of four ranks as NeMo RL v2 saves by default
verl/<kind>/global_step_1/actor     as verl: fsdp2 (DTensors on a mesh of 4), padded (FSDP2 itself), hsdp and tp (2 x 2), fsdp1
                                    (ShardedTensors), plain (world size 1), lora
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
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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


def sharded_state():
    """What the format has dtypes for, and no scalars."""
    return {name: pair for name, pair in state().items() if name not in ("model.fp8", "model.scalar", "model.bool", "model.empty")}


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


def verl_state():
    """Without what FSDP never holds: empty tensors and fp8."""
    return {name: pair for name, pair in state().items() if name not in ("model.empty", "model.fp8")}


def save_verl(tensors, out, kind, rank, world=WORLD):
    folder = out / "verl" / kind / "global_step_1/actor"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / f"model_world_size_{world}_rank_{rank}.pt")
    if rank == 0 and kind != "hsdp":  # older verl wrote none
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))


def whole(out, kind, tensors):
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, out / f"verl-{kind}.safetensors")


def layers():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    model.register_buffer("steps", torch.arange(3.0))
    return model


def save_all_verl(out, rank, mesh, square):
    distributed = distribute(verl_state(), mesh)
    save_verl(distributed, out, "fsdp2", rank)
    pairs = {name: (tensor, (Replicate(), Shard(0))) for name, (tensor, _) in verl_state().items() if tensor.dim()}
    save_verl(distribute(pairs, square), out, "hsdp", rank)
    numbers = torch.arange(9 * 6, dtype=torch.float32).reshape(9, 6)
    split = {
        "columns": (numbers, (Shard(0), Shard(1))),
        "rows": (numbers + 100, (Shard(1), Shard(0))),
        "both": (numbers + 200, (Shard(0), Shard(0))),
    }
    model = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 6, bias=False))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(48.0).reshape(parameter.shape) + 1000 * number)
    expected = {
        "columns": numbers,
        "rows": numbers + 100,
        "both": numbers + 200,
        **{name: p.detach().clone() for name, p in model.named_parameters()},
    }
    named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, named["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=named["dp"])
    save_verl({**distribute(split, square), **model.state_dict()}, out, "tp", rank)
    padded = layers()
    fully_shard(padded, mesh=mesh)
    save_verl(padded.state_dict(), out, "padded", rank)
    wrapped = FullyShardedDataParallel(layers(), use_orig_params=True, device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)):
        save_verl(wrapped.state_dict(), out, "fsdp1", rank)
    if rank == 0:
        whole(out, "fsdp2", {name: tensor for name, (tensor, _) in verl_state().items()})
        whole(out, "hsdp", {name: tensor for name, (tensor, _) in pairs.items()})
        whole(out, "tp", expected)
        for kind in ("padded", "fsdp1"):
            whole(out, kind, layers().state_dict())
        save_verl(
            {name: torch.nn.Parameter(t) if t.is_floating_point() else t for name, (t, _) in verl_state().items()}, out, "plain", 0, 1
        )
        whole(out, "plain", {name: tensor for name, (tensor, _) in verl_state().items()})


def lora_state():
    """As PEFT names it: weights with base_layer, and a pair of rank 2 on two of them."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for module, (rows, columns) in {"q_proj": (16, 8), "o_proj": (8, 16)}.items():
        path = f"base_model.model.model.layers.0.self_attn.{module}"
        tensors[f"{path}.base_layer.weight"] = torch.randn(rows, columns, generator=generator)
        tensors[f"{path}.lora_A.default.weight"] = torch.randn(2, columns, generator=generator)
        tensors[f"{path}.lora_B.default.weight"] = torch.randn(rows, 2, generator=generator)
    tensors["base_model.model.model.norm.weight"] = torch.randn(8, generator=generator)
    return tensors


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
    writer = dcp.HuggingFaceStorageWriter(str(out / "sharded/step_2/policy/weights/model"), save_distributed=True)
    dcp.save(distribute(sharded_state(), mesh), storage_writer=writer)
    save_all_verl(out, rank, mesh, square)
    save_verl(distribute({name: (tensor, Shard(0)) for name, tensor in lora_state().items()}, mesh), out, "lora", rank)
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
    save_file({name: tensor for name, (tensor, _) in sharded_state().items()}, out / "sharded.safetensors")
    config(out / "base-sharded")
    save_file({name: torch.zeros_like(tensor) for name, (tensor, _) in sharded_state().items()}, out / "base-sharded/model.safetensors")
    (out / "verl/lora/global_step_1/actor/lora_train_meta.json").write_text('{"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"}')
    config(out / "verl/lora/global_step_1/actor/huggingface")
    save_file(lora_state(), out / "verl-lora.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
