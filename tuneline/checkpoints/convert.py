"""A training checkpoint to a Hugging Face folder: planned and proved whole, streamed block by block, published by one rename.

Memory is a few blocks a thread and a record a chunk, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.blocks import Blocks
from tuneline.checkpoints.casts import target_dtype
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.dcp import read_dcp
from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.files import open_file
from tuneline.checkpoints.huggingface import (
    CONFIG,
    adapt_config,
    check_against_base,
    companion_files,
    parse_config,
    tied_pair,
    ties_embeddings,
)
from tuneline.checkpoints.layout import Layout, detect
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import INDEX, Item, Shard, index_json, plan_shards
from tuneline.checkpoints.tensors import DType, Tensor
from tuneline.checkpoints.writer import Differ, Writer
from tuneline.core.files import make_dir, publish_dir
from tuneline.core.log import get_logger
from tuneline.lineage.digests import SIDECAR, FileDigest, content_digest

#: More than there are cores, for each waits for the disk part of the time.
THREADS = max(4, min(16, os.cpu_count() or 1))

_log = get_logger("checkpoints")


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        folder: `<out_parent>/<digest>`.
        digest: Content digest of all files but lineage.json.
        parameters: Elements of all tensors written.
        bytes: Size of all files.
    """

    folder: Path
    digest: str
    files: tuple[FileDigest, ...]
    parameters: int
    bytes: int


@dataclass(frozen=True)
class _Plan:
    """
    Attributes:
        twins: Tensors that are left out, by the name of the tensor that must be equal to them.
    """

    tensors: Mapping[str, Tensor]
    twins: Mapping[str, Tensor]
    shards: tuple[Shard, ...]
    small_files: Mapping[str, bytes]


def convert(
    source: Path,
    out_parent: Path,
    *,
    base_dir: Path,
    max_shard_bytes: int,
    dtype: str = "keep",
    extra_files: Mapping[str, bytes] = {},
    threads: int = THREADS,
    finish: Callable[[Path, tuple[FileDigest, ...]], None] | None = None,
) -> Conversion:
    """Convert the checkpoint at or below `source` into `<out_parent>/<content digest>`; on an error nothing is left there.

    Args:
        base_dir: The base model: its tensors' names and shapes are compared, and files that the checkpoint lacks are taken from it.
        max_shard_bytes: Tensor bytes that a file holds at most, unless one tensor has more.
        dtype: keep, bf16 or fp16; only floats are cast.
        extra_files: Further files by relative path.
        threads: That read, hash and write.
        finish: Called with the folder and its files just before it is published; may add lineage.json.

    Raises:
        CheckpointError: The checkpoint cannot be read, is not whole or is not the base model's, or a folder of this digest is damaged.
    """
    if max_shard_bytes < 1:
        raise refused("max_shard_bytes", "must be positive", asked=str(max_shard_bytes))
    layout = detect(source)
    make_dir(out_parent)
    work = Path(tempfile.mkdtemp(prefix=".convert-", suffix=".tmp", dir=out_parent))
    try:
        with Folder(layout.folder) as folder:
            arguments = (layout, folder, base_dir, max_shard_bytes, dtype, extra_files)
            try:
                plan = _plan(*arguments, untie=False)
                written = _write_shards(work, plan, threads)
            except Differ as differ:
                _log.info("%s is not what it looked like: converting again, untied", differ)
                for path in work.iterdir():
                    path.unlink()
                plan = _plan(*arguments, untie=True)
                written = _write_shards(work, plan, threads)
        written += [_write_file(work / path, path, content) for path, content in plan.small_files.items()]
        files = tuple(sorted(written, key=lambda file: file.path))
        digest = content_digest(files)
        final = out_parent / digest
        if final.exists():
            _check_published(final, files)
        else:
            _publish(work, final, files, finish)
    except OSError as error:
        where = error.filename or out_parent
        raise refused(where, f"cannot be read or written: {error.strerror}", next_move="free space or correct permissions") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    parameters = sum(plan.tensors[item.name].numel for shard in plan.shards for item in shard.items)
    return Conversion(final, digest, files, parameters, sum(file.size for file in files))


def _plan(
    layout: Layout,
    folder: Folder,
    base_dir: Path,
    max_shard_bytes: int,
    dtype: str,
    extra_files: Mapping[str, bytes],
    *,
    untie: bool,
) -> _Plan:
    """Everything that is decided before a byte is written; `untie` where the tensors of a tied pair are known to differ."""
    tensors = {tensor.name: tensor for tensor in read_dcp(folder)}
    for tensor in tensors.values():
        check_cover(tensor)
    check_against_base(list(tensors.values()), base_dir, layout.folder)
    small = companion_files(layout.companions, base_dir)
    pair = tied_pair(tensors.values())
    twins: dict[str, Tensor] = {}
    if pair is not None and ties_embeddings(parse_config(small[CONFIG], base_dir / CONFIG)):
        head, embedding = pair
        untie = untie or not _look_equal(head, embedding)
        if untie:
            _log.warning("%s: the config ties %s to %s, but they differ: both are kept, untied", layout.folder, head.name, embedding.name)
        else:
            twins[embedding.name] = tensors.pop(head.name)
    items = [Item(tensor.name, target_dtype(tensor.dtype, dtype), tensor.shape) for tensor in tensors.values()]
    shards = plan_shards(items, max_shard_bytes)
    small[CONFIG] = adapt_config(small[CONFIG], untie=untie, dtype=_main_dtype(items))
    if len(shards) > 1:
        small[INDEX] = index_json(shards)
    taken = {*small, *(shard.file for shard in shards), SIDECAR}
    for path, content in extra_files.items():
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == "." or path in taken:
            raise refused(path, "cannot be an extra file: its name is taken or leads out of the folder")
        small[path] = content
    return _Plan(tensors, twins, tuple(shards), small)


def _main_dtype(items: list[Item]) -> DType | None:
    """The float dtype of most bytes: what a loader must be told, or it would cast the weights to the base's dtype."""
    weight: Counter[DType] = Counter()
    for item in items:
        if item.dtype.castable:
            weight[item.dtype] += item.nbytes
    return weight.most_common(1)[0][0] if weight else None


def _look_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, begin with the same bytes, and have the same CRC-32 wherever their chunks match."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    sums = {(chunk.offsets, chunk.sizes): chunk.crc32 for chunk in first.chunks if chunk.crc32 is not None}
    if any(sums.get((chunk.offsets, chunk.sizes), chunk.crc32) != chunk.crc32 for chunk in second.chunks):
        return False
    begins = []
    for tensor in (first, second):
        blocks = Blocks(tensor)
        block = next(iter(blocks))
        out = np.empty(block.numel * tensor.dtype.size, np.uint8)
        blocks.read(block, tensor.dtype, out, Room())
        begins.append(out)
    return np.array_equal(begins[0], begins[1])


def _write_shards(work: Path, plan: _Plan, threads: int) -> list[FileDigest]:
    written: list[FileDigest] = []
    Writer(
        plan.tensors,
        lambda shard: open_file(work / shard.file, shard.nbytes),
        written.append,
        threads=threads,
        twins=plan.twins,
    ).write(plan.shards)
    return written


def _write_file(path: Path, relative: str, content: bytes) -> FileDigest:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    return FileDigest(relative, hashlib.sha256(content).hexdigest(), len(content))


def _publish(work: Path, final: Path, files: tuple[FileDigest, ...], finish: Callable[[Path, tuple[FileDigest, ...]], None] | None) -> None:
    with publish_dir(final) as fresh:
        for entry in sorted(work.iterdir()):
            entry.rename(fresh / entry.name)
        if finish is not None:
            finish(fresh, files)


def _check_published(final: Path, files: tuple[FileDigest, ...]) -> None:
    """Raises CheckpointError unless the folder `final` holds exactly `files`, and lineage.json where it was written."""
    there = {path.relative_to(final).as_posix() for path in final.rglob("*") if path.is_file()} - {SIDECAR}
    faults = [f"{path} does not belong there" for path in sorted(there - {file.path for file in files})]
    for file in files:
        path = final / file.path
        if file.path not in there:
            faults.append(f"{file.path} is missing")
        elif path.stat().st_size != file.size:
            faults.append(f"{file.path} has {path.stat().st_size} bytes, not {file.size}")
        else:
            with open(path, "rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != file.sha256:
                    faults.append(f"{file.path} has other bytes than its digest says")
    if faults:
        raise refused(
            final,
            "this model was converted before, and the folder was changed since",
            found="; ".join(faults),
            next_move="find out who changed it, then remove it and convert again",
        )
