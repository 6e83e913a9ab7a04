"""FSDP2 over NCCL on two ranks: real sharded DCP, a killed rank, a resume, and a conversion that equals the weights in memory.

python bench/gpu/fsdp2.py FOLDER          starts the ranks itself; on a machine without two GPUs it uses gloo on the CPU
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS, SAVE_AT, KILL_AT = 20, 10, 13


def rank_main(folder: Path, out: str, kill_at: int, resume: str) -> None:
    """One rank: trains, saves at SAVE_AT and at the end; rank 0 keeps the whole weights as it has them in memory."""
    import signal

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.device_count() >= world
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo")
    device = f"cuda:{rank}" if gpu else "cpu"
    mesh = init_device_mesh("cuda" if gpu else "cpu", (world,))
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32).to(device)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    first = 1
    if resume:
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=resume)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        first = SAVE_AT + 1
    for step in range(first, STEPS + 1):
        if step == kill_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(1000 * step + rank)
        tokens = torch.randint(0, model.config.vocab_size, (8, 32), generator=generator).to(device)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in (SAVE_AT, STEPS):
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / out / f"state_{step}")
    target = folder / out / f"step_{STEPS}"
    dcp.save(get_model_state_dict(model), checkpoint_id=target / "weights")
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        shutil.copy(folder / "base" / "config.json", target / "config.json")
        kept = {name: value.clone().contiguous() for name, value in whole.items() if name != "lm_head.weight"}
        save_file(kept, folder / out / "memory.safetensors")
    dist.destroy_process_group()


def launch(folder: Path, out: str, world: int, kill_at: int = 0, resume: str = "") -> int:
    """Run `world` ranks; the exit code of torch's launcher."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}", "--master_addr=127.0.0.1", "--master_port=29517"]
    arguments = [__file__, "--rank", str(folder), out, str(kill_at), resume]
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    started = time.perf_counter()
    code = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
    print(f"{out}: {world} rank(s), exit {code.returncode}, {time.perf_counter() - started:.1f} s", flush=True)
    if code.returncode and not kill_at:
        print(code.stderr[-3000:], flush=True)
    return code.returncode


def compare(folder: Path, out: str, other: Path) -> tuple[bool, float]:
    """Whether the weights in memory of a training equal those in a safetensors file or folder, and the largest difference."""
    from safetensors.torch import load_file

    held = load_file(folder / out / "memory.safetensors")
    files = sorted(other.glob("*.safetensors")) if other.is_dir() else [other]
    found = {name: value for path in files for name, value in load_file(path).items()}
    if set(held) != set(found):
        return False, float("inf")
    largest = max((held[name].float() - found[name].float()).abs().max().item() for name in held)
    return all(held[name].equal(found[name]) for name in held), largest


def main(folder: Path) -> dict[str, Any]:
    from tuneline.checkpoints.convert import convert

    result: dict[str, Any] = {}
    assert launch(folder, "whole", 2) == 0
    killed = launch(folder, "killed", 2, kill_at=KILL_AT)
    assert killed != 0
    assert launch(folder, "resumed", 2, resume=str(folder / "killed" / f"state_{SAVE_AT}")) == 0
    assert launch(folder, "again", 2) == 0
    result["two undisturbed trainings equal"] = compare(folder, "whole", folder / "again" / "memory.safetensors")
    result["killed at 13, resumed from 10, equal"] = compare(folder, "whole", folder / "resumed" / "memory.safetensors")
    assert launch(folder, "fewer", 1, resume=str(folder / "killed" / f"state_{SAVE_AT}")) == 0
    result["resumed on one rank (other data split), largest difference"] = compare(
        folder, "whole", folder / "fewer" / "memory.safetensors"
    )[1]
    for out in ("whole", "resumed"):
        made = convert(folder / out / f"step_{STEPS}", folder / "hf", base_dir=folder / "base", max_shard_bytes=500_000_000)
        result[f"conversion of {out} equals memory"] = compare(folder, out, made.folder)
    print(json.dumps(result, indent=2), flush=True)
    return result


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main(Path(sys.argv[1]))
