"""Proof that chunks make up a tensor exactly, every element once, and that copies of a chunk are equal."""

from __future__ import annotations

import math

import numpy as np

from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Chunk, DType, Tensor

#: Cells of the grid that the chunks' edges draw; a mesh of 65,536 ranks draws as many.
MAX_CELLS = 1 << 24
_COMPARE_BYTES = 1 << 20


def check_cover(tensor: Tensor) -> None:
    """Prove that the chunks of `tensor` cover it with no hole and no overlap.

    The edges of all chunks cut the tensor into a grid of cells, which the chunks then mark: exact for any boxes, cheap for meshes.

    Raises:
        CheckpointError: A chunk lies outside, two overlap, or elements are missing; it says where.
    """
    shape = tensor.shape
    chunks = [chunk for chunk in tensor.chunks if math.prod(chunk.sizes)]
    for chunk in tensor.chunks:
        fits = len(chunk.offsets) == len(chunk.sizes) == len(shape)
        if not fits or any(o + s > extent for o, s, extent in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            raise refused(
                tensor.origin,
                "has a chunk outside the tensor",
                found=f"offsets {list(chunk.offsets)}, sizes {list(chunk.sizes)}; the tensor is {list(shape)}",
            )
    if not tensor.numel:
        return
    edges = [
        np.unique([0, extent, *(edge for chunk in chunks for edge in (chunk.offsets[axis], chunk.offsets[axis] + chunk.sizes[axis]))])
        for axis, extent in enumerate(shape)
    ]
    cells = tuple(len(axis_edges) - 1 for axis_edges in edges)
    if math.prod(cells) > MAX_CELLS:
        raise refused(tensor.origin, f"is cut into an irregular pattern of {len(chunks)} chunks; no mesh writes such")
    marked = np.zeros(cells, dtype=bool)
    for chunk in chunks:
        box = tuple(
            slice(int(np.searchsorted(axis_edges, o)), int(np.searchsorted(axis_edges, o + s)))
            for axis_edges, o, s in zip(edges, chunk.offsets, chunk.sizes, strict=True)
        )
        if marked[box].any():
            raise refused(
                tensor.origin,
                "has chunks that overlap",
                found=f"one at offsets {list(chunk.offsets)}, sizes {list(chunk.sizes)}, in {chunk.blob.name}",
            )
        marked[box] = True
    if not marked.all():
        hole = np.unravel_index(int(np.argmin(marked)), cells)
        first = [int(axis_edges[index]) for axis_edges, index in zip(edges, hole, strict=True)]
        raise refused(
            tensor.origin,
            "is not whole: elements are in no chunk",
            found=f"nothing at {first} of {list(shape)}; {len(chunks)} chunks",
            next_move="a rank's file was not written; take another checkpoint",
        )


def check_copies(copies: list[Chunk], dtype: DType, origin: str) -> None:
    """Prove that chunks of the same box hold the same bytes: by the CRC-32 that the writer recorded, else by reading them all.

    Raises:
        CheckpointError: Two differ.
    """
    first = copies[0]
    for other in copies[1:]:
        if first.crc32 is not None and other.crc32 is not None:
            equal = first.crc32 == other.crc32
        else:
            equal = _same_bytes(first, other, math.prod(first.sizes) * dtype.size)
        if not equal:
            raise refused(
                origin,
                "is replicated, but its copies differ",
                found=f"{first.blob.name} and {other.blob.name}",
                next_move="the ranks had drifted apart when this was saved; take another checkpoint",
            )


def _same_bytes(first: Chunk, second: Chunk, nbytes: int) -> bool:
    left, right = Room(), Room()
    for at in range(0, nbytes, _COMPARE_BYTES):
        length = min(_COMPARE_BYTES, nbytes - at)
        ours, theirs = first.blob.fetch(first.start + at, length, left), second.blob.fetch(second.start + at, length, right)
        if not np.array_equal(ours, theirs):
            return False
    return True
