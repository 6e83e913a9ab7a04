"""NeMo RL's checkpoints: `<attempt>/step_<N>/`, renamed from `tmp_step_<N>` when everything in it is written.

step_<N>/{training_info.json,config.yaml,train_dataloader.pt}
step_<N>/policy/{weights,optimizer}/{.metadata,__<R>_<I>.distcp}, policy/tokenizer/
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from tuneline.engines.base import Checkpoint

_STEP = re.compile(r"(?P<folder>[^/]+/step_(?P<step>\d+))/(?P<rest>.+)")
_SHARD = re.compile(r"__(?P<rank>\d+)_\d+\.distcp")
_PARTS = ("policy/weights", "policy/optimizer")
_ALSO = ("training_info.json", "config.yaml", "train_dataloader.pt")


def inspect(root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
    """Every checkpoint below one training key's folder, oldest step first; of equal steps a complete one comes last.

    Args:
        root: The training key's folder, as its readers name it.
        files: Path below `root` to size in bytes.
        read: The text of one of `files`.
    """
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for path, size in files.items():
        if found := _STEP.fullmatch(path):
            folders[found["folder"]][found["rest"]] = size
    found_checkpoints = []
    for folder, content in folders.items():
        step = int(folder.rpartition("_")[2])
        worlds = {part: _ranks(content, part) for part in _PARTS}
        fault = _fault(content, worlds) or _other_step(step, lambda folder=folder: read(f"{folder}/training_info.json"))  # type: ignore[misc]
        found_checkpoints.append(
            Checkpoint(step, f"{root}/{folder}", complete=not fault, fault=fault, world_size=len(worlds["policy/weights"]))
        )
    return sorted(found_checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.complete, checkpoint.path))


def _ranks(content: Mapping[str, int], part: str) -> set[int]:
    return {int(found["rank"]) for path in content if path.startswith(f"{part}/") and (found := _SHARD.fullmatch(path[len(part) + 1 :]))}


def _fault(content: Mapping[str, int], worlds: Mapping[str, set[int]]) -> str:
    for part, ranks in worlds.items():
        if f"{part}/.metadata" not in content:
            if any(path.startswith(f"{part}/") and path.endswith(".safetensors") for path in content):
                return f"{part} holds sharded safetensors, which convert does not read; this engine saves DCP"
            return f"{part}/.metadata is missing"
        if missing := set(range(max(ranks, default=0) + 1)) - ranks:
            return f"{part} lacks the shards of rank {', '.join(map(str, sorted(missing)[:5]))}"
    weights, optimizer = worlds.values()
    if weights != optimizer:
        return f"policy/weights has shards of {len(weights)} ranks, policy/optimizer of {len(optimizer)}"
    for path in _ALSO:
        if path not in content:
            return f"{path} is missing"
    for path, size in sorted(content.items()):
        if size == 0 and (path in _ALSO or path.startswith(_PARTS)):
            return f"{path} is empty"
    return ""


def _other_step(step: int, read: Callable[[], str]) -> str:
    try:
        recorded = int(json.loads(read())["total_steps"])
    except (ValueError, KeyError, TypeError) as error:
        return f"training_info.json cannot be read: {type(error).__name__}: {error}"
    return "" if recorded == step else f"training_info.json names step {recorded}"
