"""Reading folders of safetensors: Hugging Face models, and the sharded form in which NeMo RL v2 saves."""

from __future__ import annotations

import json
from typing import Any

from tuneline.checkpoints.layout import SHARD_FILE
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import INDEX, SINGLE, Entry, read_header
from tuneline.checkpoints.tensors import Chunk, DType, Tensor
from tuneline.checkpoints.torchsave import extents
from tuneline.checkpoints.tree import Tree, at, join, read_json


def entries(tree: Tree, under: str = "") -> dict[str, tuple[str, Entry]]:
    """Every tensor of a Hugging Face folder with the file that holds it; empty where it has no safetensors.

    Raises:
        CheckpointError: The index and the files disagree.
    """
    files = tree.files(under)
    if INDEX not in files:
        if SINGLE not in files:
            return {}
        return {name: (SINGLE, entry) for name, entry in read_header(tree.open(join(under, SINGLE)))[0].items()}
    where = at(tree, join(under, INDEX))
    weight_map = read_json(tree, join(under, INDEX)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise refused(where, "is no index of safetensors (no weight_map)")
    found: dict[str, tuple[str, Entry]] = {}
    for file in sorted(set(weight_map.values())):
        if "/" in file or file in ("", ".", ".."):
            raise refused(where, "names a file outside its folder", found=ascii(file))
        found.update((name, (file, entry)) for name, entry in read_header(tree.open(join(under, file)))[0].items())
    if {name: file for name, (file, _) in found.items()} != weight_map:
        raise refused(where, "does not say what its files hold")
    return found


def read_hf(tree: Tree, under: str = "") -> list[Tensor]:
    """The tensors of a Hugging Face folder, sorted. CheckpointError if it is malformed."""
    tensors = []
    for name, (file, entry) in sorted(entries(tree, under).items()):
        blob = tree.open(join(under, file))
        chunk = Chunk((0,) * len(entry.shape), entry.shape, blob, entry.start)
        tensors.append(Tensor(name, entry.dtype, entry.shape, (chunk,), f"{blob.name}: {name!a}"))
    return tensors


def read_sharded(tree: Tree, under: str = "") -> list[Tensor]:
    """The tensors that torch's HuggingFaceStorageWriter(save_distributed=True) wrote: files of parts, each with offsets in its header.

    The files do not record whole shapes: a tensor ends where its last part does. What the base model says of shapes must be checked.

    Raises:
        CheckpointError: A file is malformed, has no DCP_SHARDING_INFO, or a number is missing in the row of files.
    """
    where = at(tree, under)
    files = sorted(name for name in tree.files(under) if SHARD_FILE.fullmatch(name))
    numbers = sorted({int(match[1]) for name in files if (match := SHARD_FILE.fullmatch(name))})
    if numbers != list(range(1, len(numbers) + 1)):
        raise refused(where, "is not whole: shards are missing", found=f"numbers {numbers[:20]}")
    dtypes: dict[str, DType] = {}
    chunks: dict[str, list[Chunk]] = {}
    for file in files:
        blob = tree.open(join(under, file))
        header, metadata = read_header(blob)
        offsets = _saved_offsets(metadata, blob.name)
        if offsets.keys() != header.keys():
            raise refused(blob.name, "has tensors without offsets, or offsets without tensors")
        for name, entry in header.items():
            origin = f"{blob.name}: {name!a}"
            begins = extents(offsets[name], origin)
            if len(begins) != len(entry.shape):
                raise refused(origin, "has offsets of other dimensions than its shape")
            if dtypes.setdefault(name, entry.dtype) != entry.dtype:
                raise refused(origin, f"is {entry.dtype.name} here and {dtypes[name].name} in another file")
            if 0 not in entry.shape or not chunks.get(name):
                chunks.setdefault(name, []).append(Chunk(begins, entry.shape, blob, entry.start))
    return [_whole(name, dtypes[name], chunks[name], where) for name in sorted(chunks)]


def _saved_offsets(metadata: dict[str, Any], where: str) -> dict[str, Any]:
    text = metadata.get("DCP_SHARDING_INFO")
    try:
        info = json.loads(text) if isinstance(text, str) else None
        return {name: value["saved_offsets"] for name, value in info.items()}  # type: ignore[union-attr]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refused(where, "has no DCP_SHARDING_INFO that says where its parts lie") from error


def _whole(name: str, dtype: DType, parts: list[Chunk], where: str) -> Tensor:
    ranks = {len(part.sizes) for part in parts}
    if len(ranks) != 1:
        raise refused(where, f"has parts of {name!a} with different numbers of dimensions")
    shape = tuple(max(part.offsets[axis] + part.sizes[axis] for part in parts) for axis in range(ranks.pop()))
    held = tuple(part for part in parts if 0 not in part.sizes)
    return Tensor(name, dtype, shape, held, f"{where}: {name!a}")
