"""One shard on its way into a file: the row of jobs that make it, and the windows of memory that they fill."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuneline.checkpoints.blocks import BLOCK_BYTES, Block, Blocks, ChunkSums
from tuneline.checkpoints.disk import Bytes, aligned
from tuneline.checkpoints.safetensors import Item, Shard
from tuneline.checkpoints.tensors import Tensor


class Sink(Protocol):
    """Where the bytes of one file go."""

    #: Whether windows must come in order, one at a time.
    sequential: bool

    def write(self, start: int, data: Bytes) -> None:
        """Take a window; `start` is a multiple of the window size, and only the last window is shorter."""

    def close(self) -> None:
        """Make the file whole and durable."""

    def abort(self) -> None:
        """Leave nothing."""


@dataclass(slots=True, eq=False)
class Window:
    """A part of the file in memory.

    Attributes:
        missing: Bytes that are not there yet.
        uses: What must still happen to it: hashing, writing.
    """

    start: int
    data: Bytes
    missing: int
    uses: int = 2


@dataclass(frozen=True, slots=True)
class Part:
    """A block of a tensor as it goes into the file, and the same block of its twin."""

    item: Item
    blocks: Blocks
    block: Block
    twin: tuple[Blocks, Block] | None


@dataclass(frozen=True, slots=True)
class Job:
    """Bytes `start` to `start + length` of a file, the windows that they lie in, and the part that they are (None: of the header)."""

    stream: Stream
    start: int
    length: int
    windows: tuple[Window, ...]
    part: Part | None


class Stream:
    """A shard under way. Nothing here waits or locks: the writer does."""

    def __init__(
        self,
        shard: Shard,
        tensors: Mapping[str, Tensor],
        twins: Mapping[str, Tensor],
        sink: Sink,
        *,
        window_bytes: int,
        windows: int,
        ahead_bytes: int,
    ) -> None:
        """
        Args:
            windows: How many may be in memory, at least 3: a block may lie in two.
            ahead_bytes: How far ahead of the jobs their source bytes are announced.
        """
        self.shard = shard
        self.sink = sink
        self.sums = ChunkSums()
        self.sha256 = hashlib.sha256()
        self.size = shard.nbytes
        self._hashed = 0
        self._written = 0
        self._hashing = False
        self._window_bytes = window_bytes
        self._limit = windows
        self._free: list[Bytes] = []
        self._open: dict[int, Window] = {}
        self._plan = _announced(_plan(shard, tensors, twins, window_bytes), ahead_bytes)
        self._next = next(self._plan, None)

    @property
    def exhausted(self) -> bool:
        """Whether all jobs are taken."""
        return self._next is None

    @property
    def complete(self) -> bool:
        """Whether all bytes are hashed and written."""
        return self._hashed == self._written == self.size

    def take(self) -> Job | None:
        """The next job, None if there is no memory for it now."""
        if self._next is None:
            return None
        start, length, part = self._next
        size = self._window_bytes
        indices = range(start // size, (start + length - 1) // size + 1)
        fresh = [index for index in indices if index not in self._open]
        if len(self._open) + len(fresh) > self._limit:
            return None
        for index in fresh:
            memory = self._free.pop() if self._free else aligned(size)
            data = memory[: min(size, self.size - index * size)]
            self._open[index] = Window(index * size, data, len(data))
        self._next = next(self._plan, None)
        return Job(self, start, length, tuple(self._open[index] for index in indices), part)

    def begin_hash(self) -> Window | None:
        """The window whose turn it is, None if it is not whole, or one is being hashed."""
        window = None if self._hashing else self._open.get(self._hashed // self._window_bytes)
        if window is None or window.missing or self._hashed == self.size:
            return None
        self._hashing = True
        return window

    def end_hash(self, window: Window) -> None:
        self._hashing = False
        self._hashed += len(window.data)
        self._release(window)

    def end_write(self, window: Window) -> None:
        self._written += len(window.data)
        self._release(window)

    def _release(self, window: Window) -> None:
        window.uses -= 1
        if not window.uses:
            del self._open[window.start // self._window_bytes]
            if len(window.data) == self._window_bytes:
                self._free.append(window.data)


_Planned = tuple[int, int, Part | None]


def _plan(shard: Shard, tensors: Mapping[str, Tensor], twins: Mapping[str, Tensor], window_bytes: int) -> Iterator[_Planned]:
    """(start, length, part) of all jobs in the order of the file, the header first."""
    base = len(shard.header)
    for at in range(0, base, window_bytes):
        yield at, min(window_bytes, base - at), None
    for item in shard.items:
        tensor = tensors[item.name]
        block_bytes = min(BLOCK_BYTES, window_bytes * tensor.dtype.size // item.dtype.size)  # so a block meets two windows at most
        blocks = Blocks(tensor, block_bytes)
        twin = Blocks(twins[item.name], block_bytes) if item.name in twins else None
        pairs = zip(blocks, twin, strict=True) if twin is not None else ((block, None) for block in blocks)
        for block, other in pairs:
            part = Part(item, blocks, block, (twin, other) if twin is not None and other is not None else None)
            yield base + block.start * item.dtype.size, block.numel * item.dtype.size, part
        base += item.nbytes


def _announced(plan: Iterator[_Planned], ahead_bytes: int) -> Iterator[_Planned]:
    """`plan`, with the source bytes of each part announced to their blobs when about `ahead_bytes` of others are still before it."""
    waiting: deque[tuple[_Planned, int]] = deque()
    total = 0
    for planned in plan:
        part = planned[2]
        blocks = () if part is None else (part.block,) if part.twin is None else (part.block, part.twin[1])
        pieces = [piece for block in blocks for piece in block.pieces]
        for piece in pieces:
            piece.chunk.blob.expect(piece.chunk.start + piece.at, piece.length)
        nbytes = sum(piece.length for piece in pieces)
        waiting.append((planned, nbytes))
        total += nbytes
        while total > ahead_bytes and len(waiting) > 1:
            first, nbytes = waiting.popleft()
            total -= nbytes
            yield first
    while waiting:
        yield waiting.popleft()[0]
