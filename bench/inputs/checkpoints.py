"""Makes the inputs of bench/convert.py with torch itself, over gloo: `python bench/inputs/checkpoints.py KIND FOLDER SIZE_GB`.

dcp   a Qwen2 in bfloat16 as NeMo RL v2 saves it: FSDP2 x tensor parallel, 2 x 2 ranks, torch.distributed.checkpoint; untied, so that
      as many bytes go out as come in
verl  a Qwen2 in float32 as verl saves it: FSDP2 over 4 ranks, one torch.save of DTensors a rank; tied

Both are transformers' own Qwen2 parallelized by torch's own functions, filled with random weights a rank at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

WORLD = 4
#: Qwen2.5-1.5B's shapes; the number of layers (and below 3 GB the vocabulary) follow the size that is asked for.
SHAPE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_window_layers": 1,
}


def model_config(size_gb: float, bytes_per_element: int, *, tied: bool) -> Any:
    """A Qwen2Config whose checkpoint has about `size_gb` GB (10^9 bytes)."""
    from transformers import Qwen2Config

    elements = size_gb * 1e9 / bytes_per_element
    vocabulary = 151_936 if elements > 1.5e9 else 32_768
    layer = 46_797_824
    layers = max(1, round((elements - 2 * vocabulary * SHAPE["hidden_size"]) / layer))
    return Qwen2Config(vocab_size=vocabulary, num_hidden_layers=layers, tie_word_embeddings=tied, **SHAPE)


def _model(config: Any, dtype: Any) -> Any:
    import torch
    from transformers import Qwen2ForCausalLM

    with torch.device("meta"):
        return Qwen2ForCausalLM._from_config(config, dtype=dtype)


def _fill(model: Any, rank: int) -> None:
    """Random weights in every local shard; norms stay near one."""
    import torch
    from torch.distributed.tensor import DTensor

    model.to_empty(device="cpu")
    model.tie_weights()
    generator = torch.Generator().manual_seed(rank)
    pattern = torch.randn(1 << 20, generator=generator) * 0.02
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        flat = local.detach().view(-1)
        for at in range(0, flat.numel(), pattern.numel()):
            flat[at : at + pattern.numel()] = pattern[: flat.numel() - at]
        flat[: 1 << 10] += rank + 1


def _dcp(rank: int, folder: Path, config: Any) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _model(config, torch.bfloat16)
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    parallelize_module(model, mesh["tp"], plan)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    _fill(model, rank)
    dcp.save(model.state_dict(), checkpoint_id=folder / "policy/weights/model")


def _verl(rank: int, folder: Path, config: Any) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",))
    model = _model(config, torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _fill(model, rank)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / f"model_world_size_{WORLD}_rank_{rank}.pt")


def _rank(rank: int, kind: str, folder: Path, size_gb: float, rendezvous: str) -> None:
    import torch
    import torch.distributed as dist
    from tokenizers import Tokenizer, models

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    config = model_config(size_gb, 2, tied=False) if kind == "dcp" else model_config(size_gb, 4, tied=True)
    if kind == "dcp":
        _dcp(rank, folder, config)
    else:
        _verl(rank, folder, config)
    if rank == 0:
        companion = folder / ("policy/tokenizer" if kind == "dcp" else "huggingface")
        companion.mkdir(parents=True, exist_ok=True)
        config.architectures = ["Qwen2ForCausalLM"]
        config.dtype = "bfloat16" if kind == "dcp" else "float32"
        config.save_pretrained(companion)
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(companion / "tokenizer.json"))
        (companion / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "a"}))
        if kind == "verl":
            (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": WORLD}))
    dist.barrier()
    dist.destroy_process_group()


def main(kind: str, folder: Path, size_gb: float) -> None:
    """Write one input below `folder`."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1")
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        ranks = [spawn.Process(target=_rank, args=(rank, kind, folder, size_gb, f"{scratch}/store")) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit(f"a rank failed: {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
