"""The trl engine's checkpoints: a sharded DCP of weights and optimizer, and everything else that the next step depends on.

    step_<N>/weights/{.metadata,__R_0.distcp}     one tensor a Hugging Face key, DTensor Shard(0)
    step_<N>/optimizer/{.metadata,__R_0.distcp}   <key>.exp_avg, <key>.exp_avg_sq, <key>.step
    step_<N>/{trainer_state,schedule}.json        step and data position; learning rate schedule and parameter groups
    step_<N>/rng/rank_<R>.json                    random state of each rank
    step_<N>/{config,generation_config}.json, step_<N>/tokenizer/
    step_<N>/complete.json                        the marker: step, world_size and the size of every file; written last

Runs in the training job only. A folder is filled under a temporary name, renamed, and only then marked.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tuneline.core.errors import CheckpointError
from tuneline.core.files import fsync_path, read_json, write_json
from tuneline.engines.trl import MARKER


def _sharded(tensors: Mapping[str, torch.Tensor], device_type: str) -> dict[str, Any]:
    """Each tensor of one dimension or more as DTensor Shard(0) over all ranks; scalars stay whole."""
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    return {
        key: distribute_tensor(tensor.detach(), mesh, [Shard(0)], src_data_rank=None) if tensor.dim() else tensor.detach()
        for key, tensor in tensors.items()
    }


def _optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{part}": value
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def save(
    final: Path,
    *,
    step: int,
    model: Any,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    trainer_state: Mapping[str, Any],
    base: Path,
    tokenizer_files: Iterable[str],
) -> None:
    """Write one checkpoint as `final`; every rank calls this, and returns once it is complete.

    Args:
        model: Unwrapped, equal on every rank.
        trainer_state: JSON-able; read back by the trainer.
        base: Folder of the base model, whose configuration and tokenizer are handed on as they are: those of the running trainer
            carry marks of use (padding, cache), which would make equal weights look like different models.
        tokenizer_files: Names in `base`.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    temporary = final.with_name(f".{final.name}.tmp")
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "rng").mkdir(parents=True)
    dist.barrier()
    device_type = next(model.parameters()).device.type
    for folder, tensors in (("weights", model.state_dict()), ("optimizer", _optimizer_tensors(model, optimizer))):
        dcp.save(_sharded(tensors, device_type), checkpoint_id=str(temporary / folder))
    write_json(temporary / "rng" / f"rank_{rank:05d}.json", rng_state())
    if rank == 0:
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        write_json(temporary / "schedule.json", {"scheduler": scheduler.state_dict(), "groups": groups})
        write_json(temporary / "trainer_state.json", dict(trainer_state))
        _copy_description(base, temporary, str(model.dtype).removeprefix("torch."), tokenizer_files)
    dist.barrier()
    if rank == 0:
        _publish(temporary, final, step, world_size)
    dist.barrier()


def _copy_description(base: Path, folder: Path, dtype: str, tokenizer_files: Iterable[str]) -> None:
    config = {key: value for key, value in read_json(base / "config.json").items() if key != "torch_dtype"}
    write_json(folder / "config.json", {**config, "dtype": dtype})
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", folder / "generation_config.json")
    (folder / "tokenizer").mkdir()
    for name in tokenizer_files:
        shutil.copyfile(base / name, folder / "tokenizer" / name)


def _publish(temporary: Path, final: Path, step: int, world_size: int) -> None:
    paths = sorted(path for path in temporary.rglob("*") if path.is_file())
    files = {path.relative_to(temporary).as_posix(): path.stat().st_size for path in paths}
    if final.exists():  # an earlier writer of this attempt died before it wrote the marker
        shutil.rmtree(final)
    os.rename(temporary, final)
    fsync_path(final.parent)
    write_json(final / MARKER, {"step": step, "world_size": world_size, "files": files})
    fsync_path(final)


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Fill the model's tensors, bit by bit, whatever the world size that wrote them.

    Raises:
        CheckpointError: The keys differ from the model's.
    """
    state = model.state_dict()
    saved = set(dcp.FileSystemReader(str(folder / "weights")).read_metadata().state_dict_metadata)
    if saved != set(state):
        raise CheckpointError(
            "the checkpoint's weights are not this model's",
            asked=f"{len(state)} keys, without {sorted(saved - set(state))[:3]}",
            found=f"{len(saved)} keys in {folder}, without {sorted(set(state) - saved)[:3]}",
            next_move="resume from a checkpoint of the same base model",
        )
    dcp.load(state, checkpoint_id=str(folder / "weights"), no_dist=True)


def load_optimizer(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Fill optimizer state, parameter groups and learning rate schedule from a checkpoint of any world size."""
    metadata = dcp.FileSystemReader(str(folder / "optimizer")).read_metadata().state_dict_metadata
    flat: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = [key[len(name) + 1 :] for key in metadata if key.rpartition(".")[0] == name]
        state = {}
        for part in parts:
            entry = metadata[f"{name}.{part}"]
            # This AdamW keeps `step` on the CPU and the moments beside their parameter.
            state[part] = torch.empty(
                tuple(entry.size), dtype=entry.properties.dtype, device=parameter.device if len(entry.size) else "cpu"
            )
            flat[f"{name}.{part}"] = state[part]
        optimizer.state[parameter] = state
    dcp.load(flat, checkpoint_id=str(folder / "optimizer"), no_dist=True)
    schedule = read_json(folder / "schedule.json")
    for group, saved in zip(optimizer.param_groups, schedule["groups"], strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})
    scheduler.load_state_dict(schedule["scheduler"])


def rng_state() -> dict[str, Any]:
    """Random state of this process (Python, NumPy, torch, its CUDA device), as JSON."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = _text(torch.cuda.get_rng_state())
    return state


def restore_rng(folder: Path, rank: int, world_size: int) -> bool:
    """Set this rank's random state from a checkpoint of the same world size; False (and nothing set) for another one."""
    if read_json(folder / MARKER)["world_size"] != world_size:
        return False
    state = read_json(folder / "rng" / f"rank_{rank:05d}.json")
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_tensor(state["torch"]))
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(_tensor(state["cuda"]))
    return True


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
