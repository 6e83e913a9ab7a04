"""A tensor as a row of blocks in the order of its bytes, each assembled from the chunks that it meets."""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tuneline.checkpoints import crc
from tuneline.checkpoints.casts import Bytes
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Chunk, Tensor

#: Source bytes of a block: two or three of them fit the second-level cache of a core.
BLOCK_BYTES = 1 << 20

_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first` to `last` of the dimension len(prefix), at the index `prefix` of the dimensions before it; whole in those after it."""

    prefix: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a chunk's bytes as they were read: its CRC-32 and its length. Pieces of a chunk come in the order of its bytes."""

    chunk: Chunk
    crc32: int
    length: int


class Blocks:
    """The blocks of one tensor whose cover is proved."""

    def __init__(self, tensor: Tensor, block_bytes: int = BLOCK_BYTES) -> None:
        self.tensor = tensor
        self._shape = tensor.shape or (1,)
        self._size = tensor.dtype.size
        self._axis = 0
        while self._axis < len(self._shape) - 1 and math.prod(self._shape[self._axis + 1 :]) * self._size > block_bytes:
            self._axis += 1
        self._row = math.prod(self._shape[self._axis + 1 :])
        self._rows = max(1, block_bytes // max(1, self._row * self._size))
        # By first row along the split axis, so that a block finds its chunks by bisection.
        self._chunks = sorted(tensor.chunks, key=lambda chunk: self._box(chunk)[0][self._axis])
        self._firsts = [self._box(chunk)[0][self._axis] for chunk in self._chunks]
        self._longest = max((self._box(chunk)[1][self._axis] for chunk in self._chunks), default=0)

    @staticmethod
    def _box(chunk: Chunk) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return chunk.offsets or (0,), chunk.sizes or (1,)

    def __iter__(self) -> Iterator[Block]:
        if not self.tensor.numel:
            return
        extent = self._shape[self._axis]
        for prefix in np.ndindex(self._shape[: self._axis]):
            for first in range(0, extent, self._rows):
                yield Block(prefix, first, min(first + self._rows, extent))

    def read(self, block: Block) -> tuple[Bytes, list[Piece]]:
        """The block's bytes, and the pieces of chunks that they were made of."""
        axis = self._axis
        out = np.empty((block.last - block.first) * self._row * self._size, np.uint8)
        pieces = []
        begin = bisect_left(self._firsts, block.first - self._longest + 1)
        for chunk in self._chunks[begin : bisect_left(self._firsts, block.last)]:
            offsets, sizes = self._box(chunk)
            first, last = max(block.first, offsets[axis]), min(block.last, offsets[axis] + sizes[axis])
            if first >= last or any(not o <= at < o + s for at, o, s in zip(block.prefix, offsets, sizes, strict=False)):
                continue
            line = 0  # which row of the chunk, counting through its leading dimensions
            for at, o, s in zip((*block.prefix, first), offsets, sizes, strict=False):
                line = line * s + at - o
            row = math.prod(sizes[axis + 1 :])
            length = (last - first) * row * self._size
            start = chunk.start + line * row * self._size
            if row == self._row:
                begins = (first - block.first) * row * self._size
                data = out[begins : begins + length]
                chunk.blob.read_into(start, data.data)
            else:
                data = np.empty(length, np.uint8)
                chunk.blob.read_into(start, data.data)
                word = _WORDS[self._size]
                rows = out.view(word).reshape(-1, *self._shape[axis + 1 :])
                columns = tuple(slice(o, o + s) for o, s in zip(offsets[axis + 1 :], sizes[axis + 1 :], strict=True))
                rows[(slice(first - block.first, last - block.first), *columns)] = data.view(word).reshape(-1, *sizes[axis + 1 :])
            pieces.append(Piece(chunk, zlib.crc32(data.data), length))
        return out, pieces


class ChunkSums:
    """Checks the CRC-32 of chunks while their pieces go by: torch writes one and never looks at it again."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, int]] = {}

    def add(self, tensor: Tensor, pieces: list[Piece]) -> None:
        """Take the next pieces of chunks of `tensor`. CheckpointError when a chunk ends and its bytes are not those that were written."""
        for piece in pieces:
            chunk = piece.chunk
            before, length = self._running.pop(id(chunk), (0, 0))
            total = piece.crc32 if not length else crc.combine(before, piece.crc32, piece.length)
            length += piece.length
            if length < math.prod(chunk.sizes) * tensor.dtype.size:
                self._running[id(chunk)] = (total, length)
            elif chunk.crc32 is not None and total != chunk.crc32:
                raise refused(
                    chunk.blob.name,
                    f"the bytes of {tensor.name} at {chunk.start} are damaged",
                    asked=f"CRC-32 {chunk.crc32:08x}, as written",
                    found=f"CRC-32 {total:08x}",
                    next_move="take another checkpoint, or copy this one again from where it was written",
                )


def in_order(pool: Executor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """`work(item)` of every item, in their order, up to `ahead` of them under way or waiting at any time."""
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
