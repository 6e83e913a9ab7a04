"""A tensor as a row of blocks in the order of its bytes, each assembled from the chunks that it meets."""

from __future__ import annotations

import math
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuneline.checkpoints import crc
from tuneline.checkpoints.casts import cast
from tuneline.checkpoints.disk import Bytes, Room
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Chunk, DType, Tensor

#: Source bytes of a block: two or three of them fit the second-level cache of a core.
BLOCK_BYTES = 1 << 20

_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a chunk that a block needs: contiguous in the chunk.

    Attributes:
        at: Byte offset in the chunk.
        length: Bytes.
        first, last: The rows of the block's split axis that it holds.
    """

    chunk: Chunk
    at: int
    length: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first` to `last` of one dimension at one index of those before it, whole in those after it.

    Attributes:
        start: Its first element, counted through the whole tensor.
        numel: Its elements.
        pieces: What it is made of.
    """

    first: int
    last: int
    start: int
    numel: int
    pieces: tuple[Piece, ...]


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
        extent, start = self._shape[self._axis], 0
        for prefix in np.ndindex(self._shape[: self._axis]):
            for first in range(0, extent, self._rows):
                last = min(first + self._rows, extent)
                yield Block(first, last, start, (last - first) * self._row, tuple(self._pieces(prefix, first, last)))
                start += (last - first) * self._row

    def rows(self, first: int, last: int) -> Block:
        """Rows `first` to `last` of the first dimension; only where a row is no larger than a block."""
        return Block(first, last, first * self._row, (last - first) * self._row, tuple(self._pieces((), first, last)))

    def _pieces(self, prefix: tuple[int, ...], begin: int, end: int) -> Iterator[Piece]:
        axis = self._axis
        lowest = bisect_left(self._firsts, begin - self._longest + 1)
        for chunk in self._chunks[lowest : bisect_left(self._firsts, end)]:
            offsets, sizes = self._box(chunk)
            first, last = max(begin, offsets[axis]), min(end, offsets[axis] + sizes[axis])
            if first >= last or any(not o <= at < o + s for at, o, s in zip(prefix, offsets, sizes, strict=False)):
                continue
            line = 0  # which row of the chunk, counting through its leading dimensions
            for at, o, s in zip((*prefix, first), offsets, sizes, strict=False):
                line = line * s + at - o
            row = math.prod(sizes[axis + 1 :]) * self._size
            yield Piece(chunk, line * row, (last - first) * row, first, last)

    def read(self, block: Block, target: DType, out: Bytes, room: Room) -> list[int | None]:
        """Fill `out` with the block's elements as `target`; returns the CRC-32 of each piece's bytes, None where its chunk has none.

        Args:
            out: Exactly as large as the block's elements are as `target`.
            room: What the chunks are read into.
        """
        axis = self._axis
        word = _WORDS[target.size]
        whole = out.view(word)
        sums: list[int | None] = []
        for piece in block.pieces:
            chunk = piece.chunk
            data = chunk.blob.fetch(chunk.start + piece.at, piece.length, room)
            sums.append(None if chunk.crc32 is None else zlib.crc32(data.data))
            values = cast(data, self.tensor.dtype, target).view(word)
            offsets, sizes = self._box(chunk)
            if sizes[axis + 1 :] == self._shape[axis + 1 :]:
                begins = (piece.first - block.first) * self._row
                np.copyto(whole[begins : begins + len(values)], values)
            else:
                rows = whole.reshape(-1, *self._shape[axis + 1 :])
                columns = tuple(slice(o, o + s) for o, s in zip(offsets[axis + 1 :], sizes[axis + 1 :], strict=True))
                np.copyto(
                    rows[(slice(piece.first - block.first, piece.last - block.first), *columns)], values.reshape(-1, *sizes[axis + 1 :])
                )
        return sums


class ChunkSums:
    """Checks the CRC-32 of chunks while their pieces go by, in any order: torch writes one and never looks at it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Of each chunk that is under way: its CRC-32 so far, the bytes that it is of, and (CRC-32, length) of pieces beyond them.
        self._running: dict[int, tuple[int, int, dict[int, tuple[int, int]]]] = {}

    def add(self, tensor: Tensor, block: Block, sums: list[int | None]) -> None:
        """Take the pieces of a block of `tensor` with their CRC-32.

        Raises:
            CheckpointError: A chunk is whole now, and its bytes are not those that were written.
        """
        for piece, crc32 in zip(block.pieces, sums, strict=True):
            chunk = piece.chunk
            if crc32 is None:
                continue
            with self._lock:
                total, length, beyond = self._running.pop(id(chunk), (0, 0, {}))
                beyond[piece.at] = (crc32, piece.length)
                while (following := beyond.pop(length, None)) is not None:
                    total = crc.combine(total, *following) if length else following[0]
                    length += following[1]
                if length < math.prod(chunk.sizes) * tensor.dtype.size:
                    self._running[id(chunk)] = (total, length, beyond)
                    continue
            if total != chunk.crc32:
                raise refused(
                    chunk.blob.name,
                    f"the bytes of {tensor.name} at {chunk.start} are damaged",
                    asked=f"CRC-32 {chunk.crc32:08x}, as written",
                    found=f"CRC-32 {total:08x}",
                    next_move="take another checkpoint, or copy this one again from where it was written",
                )
