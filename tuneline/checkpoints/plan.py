"""Everything that a conversion decides before it writes a byte: names, dtypes, ties, shards and the small files beside them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from tuneline.checkpoints.blocks import Blocks
from tuneline.checkpoints.casts import POLICIES, target_dtype
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.find import Found
from tuneline.checkpoints.folders import entries, read_hf
from tuneline.checkpoints.huggingface import (
    CONFIG,
    GENERATION_CONFIG,
    adapt_config,
    check_against_base,
    check_shapes,
    companion_files,
    tied_pair,
    ties_embeddings,
)
from tuneline.checkpoints.layout import ADAPTER, SHARDED
from tuneline.checkpoints.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, build_adapter, merge, split_adapter
from tuneline.checkpoints.naming import float32_names, model_names, plain_names
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import INDEX, Item, Shard, index_json, one_shard, plan_shards
from tuneline.checkpoints.tensors import F32, DType, Tensor
from tuneline.checkpoints.tree import Tree, at, join, parse_json
from tuneline.core.log import get_logger
from tuneline.lineage.digests import SIDECAR

LIKE_BASE = "like-base"
DTYPES = (*POLICIES, LIKE_BASE)

_log = get_logger("checkpoints")


@dataclass(frozen=True)
class Options:
    """How a checkpoint is to be written.

    Attributes:
        max_shard_bytes: Tensor bytes that a file holds at most, unless one tensor has more.
        dtype: keep, bf16, fp16, or like-base: each tensor as the base model has it. Only floats are cast.
        fp32: What stays float32 whatever `dtype` says: norms, router, or regular expressions.
        merge_lora: Add LoRA weights to those of the model; else they become a PEFT adapter.
        lora_alpha: Where the checkpoint does not tell.
        extra_files: Further files by relative path.
    """

    max_shard_bytes: int
    dtype: str = "keep"
    fp32: tuple[str, ...] = ()
    merge_lora: bool = False
    lora_alpha: float | None = None
    extra_files: Mapping[str, bytes] = field(default_factory=dict)

    def check(self) -> None:
        """Raises CheckpointError where a value cannot be."""
        if self.max_shard_bytes < 1:
            raise refused("max_shard_bytes", "must be positive", asked=str(self.max_shard_bytes))
        if self.dtype not in DTYPES:
            raise refused("dtype", f"there is no policy {self.dtype!r}", asked=self.dtype, choices=DTYPES)


@dataclass(frozen=True)
class Plan:
    """What is written.

    Attributes:
        twins: Tensors that are left out, by the name of the tensor that must be equal to them.
        small_files: By relative path.
    """

    tensors: Mapping[str, Tensor]
    twins: Mapping[str, Tensor]
    shards: tuple[Shard, ...]
    small_files: Mapping[str, bytes]

    def fingerprint(self) -> str:
        """The same for two plans that write the same bytes from the same files: 64 hex characters."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(shard.file.encode() + shard.header)
            for item in shard.items:
                for chunk in self.tensors[item.name].chunks:
                    place = (
                        chunk.blob.name,
                        chunk.blob.version,
                        chunk.start,
                        chunk.offsets,
                        chunk.sizes,
                        self.tensors[item.name].dtype.name,
                    )
                    digest.update(repr(place).encode())
        for path, content in sorted(self.small_files.items()):
            digest.update(path.encode() + hashlib.sha256(content).digest())
        return digest.hexdigest()


def build_plan(source: Tree, found: Found, base: Tree, options: Options, *, untie: bool) -> Plan:
    """The plan of a checkpoint whose cover is proved.

    Args:
        untie: The tensors of a tied pair are known to differ.

    Raises:
        CheckpointError: The checkpoint is not the base model's, or contradicts its config.
    """
    layout, where = found.layout, at(source, found.layout.under)
    known = entries(base)
    tensors, pairs = split_adapter(plain_names(found.tensors))
    adapter: Adapter | None = None
    if pairs:
        folders = (*layout.companions, join(layout.under, "lora_adapter"))
        adapter = build_adapter(pairs, source, folders, options.lora_alpha, where)
    if adapter is not None and not options.merge_lora:
        return _adapter_plan(adapter, source, layout.companions, base, options)
    if options.merge_lora and adapter is None:
        raise refused(where, "has no LoRA weights to merge")
    if layout.kind == ADAPTER:
        tensors = read_hf(base)
        for tensor in tensors:
            check_cover(tensor)
    small = companion_files(source, layout.companions, base)
    config = parse_json(small[CONFIG], CONFIG)
    if adapter is not None:
        tensors = merge(tensors, adapter, where)
    tensors = model_names(tensors, config, known, where)
    check_against_base(tensors, {name: entry for name, (_, entry) in known.items()}, base.name, where, needed=layout.kind == SHARDED)
    check_shapes(tensors, config, where)
    by_name = {tensor.name: tensor for tensor in tensors}
    twins: dict[str, Tensor] = {}
    pair = tied_pair(tensors)
    if pair is not None and ties_embeddings(config):
        head, embedding = pair
        untie = untie or not look_equal(head, embedding)
        if untie:
            _log.warning("%s: the config ties %s to %s, but they differ: both are kept, untied", where, head.name, embedding.name)
        else:
            twins[embedding.name] = by_name.pop(head.name)
    items = _items(by_name.values(), options, {name: entry.dtype for name, (_, entry) in known.items()}, config)
    shards = plan_shards(items, options.max_shard_bytes)
    small[CONFIG] = adapt_config(small[CONFIG], untie=untie and pair is not None, dtype=_main_dtype(items))
    if len(shards) > 1:
        small[INDEX] = index_json(shards)
    return Plan(by_name, twins, tuple(shards), _with_extra(small, shards, options.extra_files))


def _adapter_plan(adapter: Adapter, source: Tree, companions: Sequence[str], base: Tree, options: Options) -> Plan:
    """A PEFT adapter folder: its weights, its config, and the tokenizer."""
    tensors = {tensor.name: tensor for tensor in adapter.tensors()}
    shard = one_shard(ADAPTER_WEIGHTS, _items(tensors.values(), options, {}, {}))
    small = {
        name: content for name, content in companion_files(source, companions, base).items() if name not in (CONFIG, GENERATION_CONFIG)
    }
    small[ADAPTER_CONFIG] = adapter.config_json()
    return Plan(tensors, {}, (shard,), _with_extra(small, [shard], options.extra_files))


def _items(tensors: Iterable[Tensor], options: Options, base: Mapping[str, DType], config: Mapping[str, object]) -> list[Item]:
    tensors = list(tensors)
    kept = float32_names((tensor.name for tensor in tensors), options.fp32, config)
    items = []
    main = _main_dtype([Item(name, dtype, (1,)) for name, dtype in base.items()])
    if options.dtype == LIKE_BASE and main is None:
        raise refused("dtype", "cannot be like the base's: the base has no safetensors", choices=tuple(POLICIES))
    for tensor in tensors:
        if options.dtype == LIKE_BASE:
            target = base.get(tensor.name, main or tensor.dtype) if tensor.dtype.castable else tensor.dtype
            target = target if target.castable else tensor.dtype
        else:
            target = target_dtype(tensor.dtype, options.dtype)
        if tensor.name in kept and tensor.dtype.castable:
            target = F32 if tensor.dtype.size >= F32.size else tensor.dtype
        items.append(Item(tensor.name, target, tensor.shape))
    return items


def _main_dtype(items: list[Item]) -> DType | None:
    """The float dtype of most bytes: what a loader must be told, or it would cast the weights to the base's dtype."""
    weight: Counter[DType] = Counter()
    for item in items:
        if item.dtype.castable:
            weight[item.dtype] += item.nbytes
    return weight.most_common(1)[0][0] if weight else None


def _with_extra(small: dict[str, bytes], shards: Sequence[Shard], extra_files: Mapping[str, bytes]) -> dict[str, bytes]:
    taken = {*small, *(shard.file for shard in shards), SIDECAR}
    for path, content in extra_files.items():
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == "." or taken & {path, *map(str, pure.parents)}:
            raise refused(path, "cannot be an extra file: its name is taken or leads out of the folder")
        small[path] = content
        taken.add(path)
    return small


def look_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, begin with the same bytes, and have the same CRC-32 wherever their chunks match."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    sums = {(chunk.offsets, chunk.sizes): chunk.crc32 for chunk in first.chunks if chunk.crc32 is not None}
    for chunk in second.chunks:
        known = sums.get((chunk.offsets, chunk.sizes))
        if known is not None and chunk.crc32 is not None and known != chunk.crc32:
            return False
    begins = []
    for tensor in (first, second):
        blocks = Blocks(tensor)
        for block in blocks:
            out = np.empty(block.numel * tensor.dtype.size, np.uint8)
            blocks.read(block, tensor.dtype, out, Room())
            begins.append(out)
            break
    return not begins or np.array_equal(begins[0], begins[-1])
