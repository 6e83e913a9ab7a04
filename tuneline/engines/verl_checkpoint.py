"""verl's checkpoints: `<attempt>/global_step_<N>/`, of which `<attempt>/latest_checkpointed_iteration.txt` says that they are finished.

global_step_<N>/data.pt                                              where the data loader stands
global_step_<N>/actor/{model,optim,extra_state}_world_size_<W>_rank_<R>.pt
global_step_<N>/actor/fsdp_config.json, actor/huggingface/config.json
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping

from tuneline.engines.base import Checkpoint

TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"(?P<folder>(?P<attempt>[^/]+)/global_step_(?P<step>\d+))/(?P<rest>.+)")
_SHARD = re.compile(r"actor/(?P<part>model|optim|extra_state)_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")
_PARTS = ("model", "optim", "extra_state")
_ALSO = ("data.pt", "actor/fsdp_config.json", "actor/huggingface/config.json")


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
        attempt, _, name = folder.partition("/")
        step = int(name.removeprefix("global_step_"))
        worlds = {int(match["world"]) for path in content if (match := _SHARD.fullmatch(path))}
        world = max(worlds, default=0)
        fault = _fault(content, worlds, lambda path, folder=folder: read(f"{folder}/{path}"))  # type: ignore[misc]
        fault = fault or _unfinished(f"{attempt}/{TRACKER}", step, files, read)
        found_checkpoints.append(Checkpoint(step, f"{root}/{folder}", complete=not fault, fault=fault, world_size=world))
    return sorted(found_checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.complete, checkpoint.path))


def _fault(content: Mapping[str, int], worlds: set[int], read: Callable[[str], str]) -> str:
    if len(worlds) != 1:
        return f"shards of {len(worlds)} world sizes ({', '.join(map(str, sorted(worlds)))})" if worlds else "no shard"
    world = worlds.pop()
    for part in _PARTS:
        missing = [rank for rank in range(world) if f"actor/{part}_world_size_{world}_rank_{rank}.pt" not in content]
        if missing:
            return f"{len(missing)} of {world} {part} shards are missing: rank {', '.join(map(str, missing[:5]))}" + (
                ", …" if len(missing) > 5 else ""
            )
    for path in _ALSO:
        if path not in content:
            return f"{path} is missing"
    for path, size in sorted(content.items()):
        if size == 0 and (_SHARD.fullmatch(path) or path in _ALSO):
            return f"{path} is empty"
    try:
        recorded = int(json.loads(read("actor/fsdp_config.json"))["world_size"])
    except (ValueError, KeyError, TypeError) as error:
        return f"actor/fsdp_config.json cannot be read: {type(error).__name__}: {error}"
    return "" if recorded == world else f"actor/fsdp_config.json names {recorded} ranks, the shards {world}"


def _unfinished(tracker: str, step: int, files: Mapping[str, int], read: Callable[[str], str]) -> str:
    """verl writes the tracker after everything else of a step, so a step that it does not reach was not finished."""
    if tracker not in files:
        return f"no {TRACKER}: no checkpoint of this attempt was finished"
    text = read(tracker).strip()
    if not text.isdecimal():
        return f"{TRACKER} holds {text[:40]!r}"
    return "" if step <= int(text) else f"{TRACKER} names step {text}: this one was not finished"
