"""A training checkpoint to a Hugging Face folder: planned and proved whole, streamed block by block, published by one rename.

Memory is a few blocks a thread and a record a chunk, whatever the size of the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuneline.checkpoints.bucket_work import PART_BYTES, BucketWork
from tuneline.checkpoints.find import find, open_source, open_tree
from tuneline.checkpoints.local import Finish, LocalWork
from tuneline.checkpoints.plan import Options, Plan, build_plan
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import Shard
from tuneline.checkpoints.stream import Sink
from tuneline.checkpoints.writer import Differ, Writer
from tuneline.core.errors import StoreError
from tuneline.core.log import get_logger
from tuneline.lineage.digests import FileDigest, content_digest

#: More than a small machine has cores, for each waits for the disk part of the time; no more, for each holds memory.
THREADS = max(8, min(12, os.cpu_count() or 1))
#: Into a bucket every thread holds parts in memory.
THREADS_REMOTE = 8
#: From a bucket, what is announced so far ahead is merged to large reads.
AHEAD_REMOTE = 96 << 20

_log = get_logger("checkpoints")


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        uri: `<out_parent>/<digest>`: a path, or gs://….
        digest: Content digest of all files but lineage.json.
        parameters: Elements of all tensors written.
        bytes: Size of all files.
        kind: What was read: dcp, verl fsdp, …
        step: The training step that the checkpoint's folder is named after, None where it is named otherwise.
    """

    uri: str
    digest: str
    files: tuple[FileDigest, ...]
    parameters: int
    bytes: int
    kind: str
    step: int | None

    @property
    def folder(self) -> Path:
        """The folder, where it is on a disk."""
        return Path(self.uri)


class Work(Protocol):
    """A conversion on its way to where it goes."""

    def finished(self, shard: Shard) -> FileDigest | None: ...
    def open(self, shard: Shard) -> Sink: ...
    def done(self, digest: FileDigest) -> None: ...
    def put(self, relative: str, content: bytes) -> FileDigest: ...
    def publish(self, digest: str, files: tuple[FileDigest, ...], finish: Finish | None) -> str: ...
    def discard(self) -> None: ...
    def keep(self) -> None: ...


def convert(
    source: Path | str,
    out_parent: Path | str,
    *,
    base_dir: Path | str,
    max_shard_bytes: int,
    dtype: str = "keep",
    fp32: tuple[str, ...] = (),
    merge_lora: bool = False,
    lora_alpha: float | None = None,
    step: int | None = None,
    extra_files: Mapping[str, bytes] = {},
    threads: int = THREADS,
    finish: Finish | None = None,
) -> Conversion:
    """Convert the checkpoint at or below `source` into `<out_parent>/<content digest>`.

    What cannot be converted leaves nothing there. What was interrupted leaves nothing under a final name, and goes on from finished
    shards when it is run again. `source`, `out_parent` and `base_dir` are folders, or gs://bucket/prefix.

    Args:
        base_dir: The base model: its tensors' names and shapes are compared, and files that the checkpoint lacks are taken from it.
        max_shard_bytes: Tensor bytes that a file holds at most, unless one tensor has more.
        dtype: keep, bf16, fp16 or like-base; only floats are cast.
        fp32: What stays float32 all the same: norms, router, or regular expressions.
        merge_lora: Add LoRA weights to those of the model; else they become a PEFT adapter folder.
        lora_alpha: Where the checkpoint does not tell.
        step: Where `source` holds several; the newest whole one where None.
        extra_files: Further files by relative path.
        threads: That read, hash and write.
        finish: Called with the folder and its files just before it is published; may add lineage.json.

    Raises:
        CheckpointError: The checkpoint cannot be read, is not whole or is not the base model's, or a folder of this digest is damaged.
    """
    options = Options(max_shard_bytes, dtype, fp32, merge_lora, lora_alpha, extra_files)
    options.check()
    if threads < 1:
        raise refused("threads", "must be positive", asked=str(threads))
    tree, under = open_source(source)
    base = None
    try:
        base = open_tree(base_dir, trusted=True)
        found = find(tree, under, step)
        plan = build_plan(tree, found, base, options, untie=False)
        try:
            uri, files = _write(plan, out_parent, threads, finish, remote=tree.name.startswith("gs://"))
        except Differ as differ:
            _log.info("%s is not what it looked like: converting again, untied", differ)
            plan = build_plan(tree, found, base, options, untie=True)
            uri, files = _write(plan, out_parent, threads, finish, remote=tree.name.startswith("gs://"))
    except OSError as error:
        where = error.filename or out_parent
        raise refused(where, f"cannot be read or written: {error.strerror}", next_move="free space or correct permissions") from error
    finally:
        tree.close()
        if base is not None:
            base.close()
    parameters = sum(plan.tensors[item.name].numel for shard in plan.shards for item in shard.items)
    size = sum(file.size for file in files)
    return Conversion(uri, content_digest(files), files, parameters, size, found.layout.kind, found.step)


def _write(plan: Plan, out_parent: Path | str, threads: int, finish: Finish | None, *, remote: bool) -> tuple[str, tuple[FileDigest, ...]]:
    work = _begin(out_parent, plan.fingerprint())
    try:
        known = {shard.file: digest for shard in plan.shards if (digest := work.finished(shard)) is not None}
        if known:
            _log.info("going on from %d of %d shards", len(known), len(plan.shards))
        written = list(known.values())

        def done(digest: FileDigest) -> None:
            work.done(digest)
            written.append(digest)

        sizes = {"ahead_bytes": AHEAD_REMOTE} if remote else {}
        if str(out_parent).startswith("gs://"):
            sizes["window_bytes"] = PART_BYTES
            threads = min(threads, THREADS_REMOTE)
        writer = Writer(plan.tensors, work.open, done, threads=threads, twins=plan.twins, **sizes)
        writer.write([shard for shard in plan.shards if shard.file not in known])
        written += [work.put(path, content) for path, content in plan.small_files.items()]
        files = tuple(sorted(written, key=lambda file: file.path))
        return work.publish(content_digest(files), files, finish), files
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, OSError | StoreError):
            work.discard()
        else:  # an interrupt, a full disk, a lost connection: the next attempt goes on from what is there
            work.keep()
        raise


def _begin(out_parent: Path | str, fingerprint: str) -> Work:
    if str(out_parent).startswith("gs://"):
        return BucketWork(str(out_parent), fingerprint)
    return LocalWork(Path(out_parent), fingerprint)
