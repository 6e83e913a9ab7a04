"""LoRA in a checkpoint: as a PEFT adapter folder of its own, or merged into the weights that it belongs to."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tuneline.checkpoints.blocks import BLOCK_BYTES, Blocks, ChunkSums
from tuneline.checkpoints.casts import cast
from tuneline.checkpoints.disk import Bytes, Room
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import F32, Chunk, Tensor
from tuneline.checkpoints.tree import Tree, at, join, read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: verl writes it beside its shards.
TRAIN_META = "lora_train_meta.json"

_LORA = re.compile(r"(.+)\.lora_([AB])(?:\.[A-Za-z0-9_]+)?\.weight")
_PEFT = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """The low-rank parts of a checkpoint.

    Attributes:
        pairs: (A [rank, in], B [out, rank]) by the module that they change, as in model.layers.0.self_attn.q_proj.
        rank: Of all pairs.
        alpha: The scale of the product is alpha / rank, or alpha / sqrt(rank) where `rank_stabilized`.
        config: adapter_config.json.
    """

    pairs: Mapping[str, tuple[Tensor, Tensor]]
    rank: int
    alpha: float
    rank_stabilized: bool
    config: Mapping[str, Any]

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    def tensors(self) -> list[Tensor]:
        """A and B under PEFT's names."""
        named = [
            Tensor(f"{_PEFT}{module}.lora_{letter}.weight", tensor.dtype, tensor.shape, tensor.chunks, tensor.origin)
            for module, pair in self.pairs.items()
            for letter, tensor in zip("AB", pair, strict=True)
        ]
        return sorted(named, key=lambda tensor: tensor.name)

    def config_json(self) -> bytes:
        return (json.dumps(self.config, indent=2, sort_keys=True) + "\n").encode()


def split_adapter(tensors: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, dict[str, Tensor]]]:
    """(tensors of the model itself, {module: {"A": …, "B": …}})."""
    plain, pairs = [], dict[str, dict[str, Tensor]]()
    for tensor in tensors:
        match = _LORA.fullmatch(tensor.name)
        if match is None:
            plain.append(tensor)
        else:
            pairs.setdefault(match[1].removeprefix(_PEFT), {})[match[2]] = tensor
    return plain, pairs


def build_adapter(
    pairs: Mapping[str, Mapping[str, Tensor]], source: Tree, folders: Sequence[str], alpha: float | None, where: str
) -> Adapter:
    """Put pairs and what the checkpoint says of them together.

    Args:
        folders: Where adapter_config.json or lora_train_meta.json may lie.
        alpha: Given by the caller; wins.

    Raises:
        CheckpointError: A pair is incomplete or of odd shape, ranks differ, or alpha is not known.
    """
    shapes = {}
    for module, pair in sorted(pairs.items()):
        if set(pair) != {"A", "B"}:
            raise refused(where, f"has only lora_{''.join(pair)} of {module}")
        a, b = pair["A"].shape, pair["B"].shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise refused(where, f"has a LoRA pair of {module} whose shapes do not fit", found=f"A {list(a)}, B {list(b)}")
        shapes[module] = a[0]
    ranks = set(shapes.values())
    if len(ranks) != 1:
        raise refused(where, "has LoRA pairs of different ranks", found=", ".join(map(str, sorted(ranks))))
    rank = ranks.pop()
    recorded = _recorded(source, folders)
    if recorded.get("r", rank) != rank:
        raise refused(where, f"has LoRA pairs of rank {rank}, its {ADAPTER_CONFIG} or {TRAIN_META} says {recorded['r']}")
    scale = alpha if alpha is not None else recorded.get("lora_alpha")
    if type(scale) not in (int, float) or not scale:
        raise refused(
            where,
            "does not tell lora_alpha, without which its LoRA weights mean nothing",
            asked=", ".join(at(source, join(folder, name)) for folder in folders for name in (ADAPTER_CONFIG, TRAIN_META)),
            next_move="give it (--lora-alpha), as it was in the training's config",
        )
    unsupported = [key for key in ("use_dora", "rank_pattern", "alpha_pattern") if recorded.get(key)]
    if unsupported:
        raise refused(where, f"has an adapter with {', '.join(unsupported)}", next_move="merge it with PEFT itself")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_dropout": 0.0,
        "target_modules": sorted({module.rpartition(".")[2] for module in shapes}),
        **recorded,
        "r": rank,
        "lora_alpha": scale,
    }
    return Adapter(
        {module: (pairs[module]["A"], pairs[module]["B"]) for module in sorted(pairs)},
        rank,
        float(scale),
        bool(recorded.get("use_rslora")),
        config,
    )


def _recorded(source: Tree, folders: Sequence[str]) -> dict[str, Any]:
    """adapter_config.json, else verl's lora_train_meta.json, of the first folder that has one; empty where none has."""
    for name in (ADAPTER_CONFIG, TRAIN_META):
        for folder in folders:
            if name in source.files(folder):
                return read_json(source, join(folder, name))
    return {}


def merge(tensors: Sequence[Tensor], adapter: Adapter, where: str) -> list[Tensor]:
    """`tensors` with W + scale * B A in place of the weights that the adapter changes, computed in float32 while they are read.

    Raises:
        CheckpointError: A weight is missing, of another shape, or no float.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    for module, (a, b) in adapter.pairs.items():
        name = f"{module}.weight"
        weight = by_name.get(name)
        if weight is None:
            raise refused(where, f"has LoRA weights for {name}, which neither it nor the base has", next_move="give the base (--base)")
        if weight.shape != (b.shape[0], a.shape[1]) or not (weight.dtype.castable and a.dtype.castable and b.dtype.castable):
            raise refused(
                where, f"has LoRA weights that do not fit {name}", found=f"{list(weight.shape)}, B {list(b.shape)}, A {list(a.shape)}"
            )
        blob = _Merged(weight, a, b, adapter.scale)
        chunk = Chunk((0, 0), weight.shape, blob, 0)
        by_name[name] = Tensor(name, weight.dtype, weight.shape, (chunk,), weight.origin)
    return list(by_name.values())


class _Merged:
    """A merged weight as a blob: its rows are computed when they are fetched."""

    def __init__(self, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
        self.name = weight.origin
        self.size = weight.nbytes
        self.version = "+".join(chunk.blob.version + f"@{chunk.start}" for part in (weight, a, b) for chunk in part.chunks) + f"*{scale!r}"
        self._weight, self._a, self._b, self._scale = weight, a, b, scale
        self._row = weight.shape[1] * weight.dtype.size
        self._blocks = Blocks(weight, max(BLOCK_BYTES, self._row))
        self._sums = ChunkSums()
        self._lock = threading.Lock()
        self._low: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None

    def _factors(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        with self._lock:
            if self._low is None:
                self._low = (_read_whole(self._a), _read_whole(self._b) * np.float32(self._scale))
            return self._low

    def read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self.fetch(offset, len(out), Room()).data

    def fetch(self, offset: int, length: int, room: Room) -> Bytes:
        first, last = offset // self._row, -(-(offset + length) // self._row)
        block = self._blocks.rows(first, last)
        values = np.empty(block.numel * 4, np.uint8)
        self._sums.add(self._weight, block, self._blocks.read(block, F32, values, room))
        a, b = self._factors()
        rows = values.view(np.float32).reshape(last - first, -1)
        rows += b[first:last] @ a
        merged = cast(values, F32, self._weight.dtype)
        if last * self._row == self.size:
            with self._lock:
                self._low = None  # most likely the last rows; read again if not
        begins = offset - first * self._row
        return merged[begins : begins + length]

    def expect(self, offset: int, length: int) -> None:
        """The kernel's own read-ahead must do."""


def _read_whole(tensor: Tensor) -> npt.NDArray[np.float32]:
    """All of a small tensor as float32. CheckpointError if its bytes are damaged."""
    out = np.empty(tensor.numel * 4, np.uint8)
    blocks, sums, room = Blocks(tensor), ChunkSums(), Room()
    for block in blocks:
        part = out[block.start * 4 : (block.start + block.numel) * 4]
        sums.add(tensor, block, blocks.read(block, F32, part, room))
    return out.view(np.float32).reshape(tensor.shape)
