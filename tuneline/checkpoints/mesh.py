"""Which part of a tensor a rank holds, by its device mesh and placements: what DTensor computes, from the inert records of its pickle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuneline.checkpoints.pickles import Record, describe
from tuneline.checkpoints.refusal import refused

Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies along one dimension of the mesh.

    Attributes:
        dim: The tensor dimension that is cut, None where every rank has all.
        strided: Cut after the mesh dimensions that follow (FSDP over tensor parallel).
    """

    dim: int | None
    strided: bool = False


def placement_of(value: Any, dimensions: int, where: str) -> Placement:
    """A Replicate, Shard or _StridedShard record. CheckpointError for anything else, Partial included."""
    kind = value.kind.rpartition(".")[2] if isinstance(value, Record) else ""
    if kind == "Replicate":
        return Placement(None)
    if kind in ("Shard", "_StridedShard"):
        dim = value.fields().get("dim", value.args[0] if value.args else None)
        if type(dim) is int and -dimensions <= dim < dimensions:
            return Placement(dim % dimensions, kind == "_StridedShard")
    raise refused(where, f"has {describe(value)} where a placement (Replicate, Shard) must be")


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh as one rank sees it: its extents, and where the rank is."""

    shape: tuple[int, ...]
    coordinates: tuple[int, ...]


def local_box(shape: tuple[int, ...], placements: tuple[Placement, ...], mesh: Mesh) -> Box:
    """(offsets, sizes) of what the rank at `mesh.coordinates` holds of a tensor of `shape`.

    Each dimension of the mesh cuts what those before it left, in pieces of ceil(extent / ranks); strided ones come after all others.
    """
    offsets, sizes = [0] * len(shape), list(shape)
    order = sorted(range(len(placements)), key=lambda axis: placements[axis].strided)
    for axis in order:
        dim = placements[axis].dim
        if dim is None:
            continue
        piece = -(-sizes[dim] // mesh.shape[axis])
        first = min(sizes[dim], piece * mesh.coordinates[axis])
        offsets[dim] += first
        sizes[dim] = min(piece, sizes[dim] - first)
    return tuple(offsets), tuple(sizes)


def mesh_from_layout(axes: Any, rank_map: list[int], rank: int, where: str) -> Mesh:
    """The mesh of newer torch: extents and strides over a list of ranks.

    Args:
        axes: `_MeshLayout.axes`, records with `shape` and `stride`.
    """
    if not isinstance(axes, tuple | list) or rank not in rank_map:
        raise refused(where, f"has a device mesh without rank {rank}")
    position = rank_map.index(rank)
    shape, coordinates = [], []
    for axis in axes:
        fields = axis.fields() if isinstance(axis, Record) else {}
        extents, strides = _counts(fields.get("shape")), _counts(fields.get("stride"))
        if extents is None or strides is None or len(extents) != len(strides):
            raise refused(where, "has a device mesh whose layout is not understood")
        coordinate = 0
        for extent, stride in zip(extents, strides, strict=True):
            coordinate = coordinate * extent + position // stride % extent
        shape.append(math.prod(extents))
        coordinates.append(coordinate)
    return Mesh(tuple(shape), tuple(coordinates))


def mesh_from_ranks(ranks: list[int], shape: tuple[int, ...], rank: int, where: str) -> Mesh:
    """The mesh of older torch: a tensor of ranks, row-major in `ranks`."""
    if math.prod(shape) != len(ranks) or ranks.count(rank) != 1:
        raise refused(where, f"has a device mesh that does not hold rank {rank} once")
    position, coordinates = ranks.index(rank), []
    for extent in reversed(shape):
        coordinates.append(position % extent)
        position //= extent
    return Mesh(shape, tuple(reversed(coordinates)))


def _counts(value: Any) -> tuple[int, ...] | None:
    """A short tuple of positive numbers, else None."""
    if not isinstance(value, tuple | list) or len(value) > 8 or not all(type(number) is int and 0 < number < 1 << 32 for number in value):
        return None
    return tuple(value)
