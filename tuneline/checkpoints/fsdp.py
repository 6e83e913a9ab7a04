"""Reading verl's FSDP checkpoints without torch: one torch.save a rank, of DTensors (FSDP2), ShardedTensors (FSDP1) or plain tensors."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from tuneline.checkpoints.cover import check_copies
from tuneline.checkpoints.layout import RANK_FILE
from tuneline.checkpoints.mesh import Mesh, local_box, mesh_from_layout, mesh_from_ranks, placement_of
from tuneline.checkpoints.pickles import Allowed, Name, Record, describe, load
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Blob, Chunk, DType, Tensor, is_contiguous
from tuneline.checkpoints.torchsave import TENSOR_NAMES, dtype_of, extents, tensor_record
from tuneline.checkpoints.tree import Tree, at, join, read_json
from tuneline.checkpoints.zips import Archive, Span

MAX_PICKLE_BYTES = 64 << 20
_MAX_ENTRIES = 200_000

_TENSOR = "torch.distributed.tensor"
_OLD_TENSOR = "torch.distributed._tensor"
_SHARDED = "torch.distributed._shard"
_ALLOWED: Allowed = TENSOR_NAMES | {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch", "strided"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch._utils", "_rebuild_wrapper_subclass"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch.serialization", "_get_layout"),
    *((place, "DTensor") for place in (_TENSOR, f"{_TENSOR}._api", f"{_OLD_TENSOR}.api", _OLD_TENSOR)),
    *((f"{_TENSOR}._dtensor_spec", name) for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")),
    *((f"{_OLD_TENSOR}._dtensor_spec", name) for name in ("DTensorSpec", "TensorMeta")),
    *((f"{_OLD_TENSOR}.placement_types", name) for name in ("DTensorSpec", "TensorMeta")),
    *(
        (f"{place}.placement_types", name)
        for place in (_TENSOR, _OLD_TENSOR)
        for name in ("Shard", "_StridedShard", "Replicate", "Partial", "_Partial")
    ),
    ("torch.distributed.device_mesh", "DeviceMesh"),
    ("torch.distributed._mesh_layout", "_MeshLayout"),
    ("torch.distributed._mesh_layout", "_FlatLayout"),
    (f"{_SHARDED}.sharded_tensor.api", "ShardedTensor"),
    (f"{_SHARDED}.sharded_tensor.api", "ProcessGroupState"),
    (f"{_SHARDED}.sharded_tensor.shard", "Shard"),
    (f"{_SHARDED}.sharded_tensor.metadata", "ShardedTensorMetadata"),
    (f"{_SHARDED}.sharded_tensor.metadata", "TensorProperties"),
    (f"{_SHARDED}.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
    (f"{_SHARDED}.metadata", "ShardMetadata"),
    (f"{_SHARDED}.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"),
    (f"{_SHARDED}.sharding_spec.api", "EnumerableShardingSpec"),
    ("torch.distributed.remote_device", "_remote_device"),
    # How protocol 2 writes a member of an enum. Inert like every name here: it is recorded, never looked up or called.
    ("__builtin__", "getattr"),
}


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one rank holds of a tensor: its box, or all of it where `replicated`."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    replicated: bool


def read_fsdp(tree: Tree, under: str = "") -> list[Tensor]:
    """The tensors of all ranks under the names that were saved, sorted.

    Raises:
        CheckpointError: A rank is missing, a file is not what torch writes, or ranks disagree. Cover is not proved here.
    """
    where = at(tree, under)
    world, files = _rank_files(tree, under)
    pieces: dict[str, list[_Piece]] = {}
    for rank in range(world):
        for name, piece in _RankFile(tree.open(join(under, files[rank])), rank, world).pieces().items():
            pieces.setdefault(name, []).append(piece)
    faults = [name for name, held in pieces.items() if len(held) != world]
    if faults:
        raise refused(where, f"has tensors that only some of the {world} ranks hold", found=", ".join(map(ascii, sorted(faults)[:10])))
    if not pieces:
        raise refused(where, "holds no tensors")
    return [_join(name, held, where) for name, held in sorted(pieces.items())]


def _rank_files(tree: Tree, under: str) -> tuple[int, dict[int, str]]:
    """(world size, file by rank); all ranks are there and not empty."""
    where = at(tree, under)
    by_world: dict[int, dict[int, str]] = {}
    listed = tree.files(under)
    for name in listed:
        if match := RANK_FILE.fullmatch(name):
            by_world.setdefault(int(match[1]), {})[int(match[2])] = name
    configured = read_json(tree, join(under, "fsdp_config.json")).get("world_size") if "fsdp_config.json" in listed else None
    if configured is None and len(by_world) != 1:
        raise refused(where, "holds files of several world sizes", choices=[str(world) for world in sorted(by_world)])
    world = int(configured) if type(configured) is int else next(iter(by_world), 0)
    files = by_world.get(world, {})
    missing = sorted(set(range(world)) - files.keys())
    if missing or not files or files.keys() - set(range(world)):
        names = ", ".join(f"model_world_size_{world}_rank_{rank}.pt" for rank in missing[:10])
        raise refused(where, "is not whole", asked=f"{world} ranks", found=f"missing: {names or 'none'}; there: {len(files)} ranks")
    return world, files


def _join(name: str, held: list[_Piece], where: str) -> Tensor:
    """The tensor that the pieces of all ranks make; copies of the same box must have the same bytes."""
    origin = f"{where}: {name!a}"
    if len({(piece.dtype, piece.shape) for piece in held}) != 1:
        found = ", ".join(f"{list(piece.shape)} of {piece.dtype.name}" for piece in held[:4])
        raise refused(origin, "is described in different ways by different ranks", found=found)
    boxes: dict[tuple[Any, Any], list[Chunk]] = {}
    for piece in held:
        for chunk in piece.chunks:
            if 0 not in chunk.sizes:
                boxes.setdefault((chunk.offsets, chunk.sizes), []).append(chunk)
    for copies in boxes.values():
        check_copies(copies, held[0].dtype, origin)
    return Tensor(name, held[0].dtype, held[0].shape, tuple(copies[0] for copies in boxes.values()), origin)


class _RankFile:
    """One rank's file."""

    def __init__(self, blob: Blob, rank: int, world: int) -> None:
        self._name = blob.name
        self._blob = blob
        self._rank = rank
        self._world = world
        self._archive = Archive(Span(blob, 0, blob.size), max_entries=_MAX_ENTRIES)
        roots = [name.removesuffix("data.pkl") for name in self._archive.entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            raise refused(self._name, "is not what torch.save writes (it needs exactly one data.pkl)")
        self._root = roots[0]
        if f"{self._root}byteorder" in self._archive.entries and self._archive.read(f"{self._root}byteorder", max_bytes=16) != b"little":
            raise refused(self._name, "was not written on a little-endian machine")
        self._meshes: dict[int, Mesh] = {}

    def pieces(self) -> dict[str, _Piece]:
        value = load(self._archive.read(f"{self._root}data.pkl", max_bytes=MAX_PICKLE_BYTES), _ALLOWED, self._name)
        if not isinstance(value, dict):
            raise refused(self._name, f"holds {describe(value)} where a state dict must be")
        found = {}
        for name, tensor in value.items():
            if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 1024 or name == "__metadata__":
                raise refused(self._name, f"has a tensor named {describe(name)}")
            found[name] = self._piece(tensor, f"{self._name}: {name!a}")
        held = sum(math.prod(chunk.sizes) * piece.dtype.size for piece in found.values() for chunk in piece.chunks)
        if held > 2 * self._blob.size:  # twice: tied tensors share their bytes
            raise refused(self._name, f"describes {held} bytes of tensors in {self._blob.size}")
        return found

    def _piece(self, value: Any, where: str) -> _Piece:
        kind = value.kind if isinstance(value, Record) else ""
        if kind == "torch._utils._rebuild_parameter" and value.args:
            return self._piece(value.args[0], where)
        if kind != "torch._tensor._rebuild_from_type_v2":
            dtype, chunk = self._stored(value, None, where)
            return _Piece(dtype, chunk.sizes, (chunk,), True)
        if len(value.args) != 4 or not isinstance(value.args[1], Name):
            raise refused(where, "holds a tensor that is not understood")
        kind, state = value.args[1].name, value.args[3]
        if kind == "ShardedTensor":
            return self._sharded(state, value.args[2], where)
        if kind == "DTensor":
            return self._distributed(state, where)
        raise refused(where, f"holds {describe(value.args[1])}", choices=["DTensor", "ShardedTensor", "Tensor"])

    def _distributed(self, state: Any, where: str) -> _Piece:
        fields = state[1] if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict) else state
        spec = fields.get("_spec") if isinstance(fields, dict) else None
        described = spec.fields() if isinstance(spec, Record) else {}
        meta, placements = described.get("tensor_meta"), described.get("placements")
        if not isinstance(meta, Record) or not meta.args or not isinstance(placements, tuple | list):
            raise refused(where, "holds a DTensor without shape and placements")
        shape = extents(meta.args[0], where)
        mesh = self._mesh(described.get("mesh"), where)
        if len(placements) != len(mesh.shape):
            raise refused(where, f"has {len(placements)} placements on a mesh of {len(mesh.shape)} dimensions")
        offsets, sizes = local_box(shape, tuple(placement_of(each, len(shape), where) for each in placements), mesh)
        dtype, chunk = self._stored(fields.get("_local_tensor"), offsets, where)
        if chunk.sizes != sizes:
            raise refused(
                where, "is not the part of the tensor that its mesh gives it", asked=str(list(sizes)), found=str(list(chunk.sizes))
            )
        return _Piece(dtype, shape, (chunk,), False)

    def _sharded(self, state: Any, args: Any, where: str) -> _Piece:
        if not isinstance(state, tuple) or len(state) < 2 or not isinstance(state[0], list) or not isinstance(state[1], Record):
            raise refused(where, "holds a ShardedTensor that is not understood")
        shape = extents(state[1].fields().get("size"), where)
        dtype: DType | None = None
        chunks = []
        for shard in state[0]:
            fields = shard.fields() if isinstance(shard, Record) else {}
            metadata = fields.get("metadata")
            box = metadata.fields() if isinstance(metadata, Record) else {}
            offsets = extents(box.get("shard_offsets"), where)
            dtype, chunk = self._stored(fields.get("tensor"), offsets, where)
            if chunk.sizes != extents(box.get("shard_sizes"), where):
                raise refused(where, "holds a shard of another size than its metadata say")
            chunks.append(chunk)
        if dtype is None:
            dtype = dtype_of(args[1] if isinstance(args, tuple) and len(args) > 1 else None, where)
        return _Piece(dtype, shape, tuple(chunks), False)

    def _stored(self, value: Any, offsets: tuple[int, ...] | None, where: str) -> tuple[DType, Chunk]:
        """A tensor in this file as a chunk at `offsets` (the origin where None). It must be contiguous and lie inside its storage."""
        record = tensor_record(value, where)
        start, entry = self._archive.locate(f"{self._root}data/{record.storage_key}")
        nbytes = math.prod(record.shape) * record.dtype.size
        begins = record.storage_offset * record.dtype.size
        if entry.size != record.storage_bytes or begins + nbytes > entry.size:
            raise refused(where, "does not lie inside its storage", found=f"{begins}+{nbytes} bytes in {entry.size}")
        if not is_contiguous(record.shape, record.stride):
            raise refused(where, "is not contiguous", found=f"shape {list(record.shape)}, stride {list(record.stride)}")
        whole = nbytes == entry.size and self._archive.has_sums
        origin = offsets if offsets is not None else (0,) * len(record.shape)
        if len(origin) != len(record.shape):
            raise refused(where, "has a part of other dimensions than the whole")
        return record.dtype, Chunk(origin, record.shape, self._blob, start + begins, entry.crc32 if whole else None)

    def _mesh(self, value: Any, where: str) -> Mesh:
        if not isinstance(value, Record):
            raise refused(where, f"has {describe(value)} where a DeviceMesh must be")
        known = self._meshes.get(id(value))
        if known is not None:
            return known
        fields = value.fields()
        layout = fields.get("_layout")
        if isinstance(layout, Record) and "axes" in layout.fields():
            mesh = mesh_from_layout(layout.fields()["axes"], self._integers(fields.get("_rank_map"), where)[0], self._rank, where)
        elif "mesh" in fields:
            ranks, shape = self._integers(fields["mesh"], where)
            mesh = mesh_from_ranks(ranks, shape, self._rank, where)
        else:
            mesh = mesh_from_ranks(list(range(self._world)), (self._world,), self._rank, where)
        self._meshes[id(value)] = mesh
        return mesh

    def _integers(self, value: Any, where: str) -> tuple[list[int], tuple[int, ...]]:
        """A small tensor of integers: its elements and shape."""
        dtype, chunk = self._stored(value, None, where)
        count = math.prod(chunk.sizes)
        form = {"int32": "i", "int64": "q"}.get(dtype.name)
        if form is None or count > 1 << 20:
            raise refused(where, f"has a device mesh of {count} elements of {dtype.name}")
        content = bytearray(count * dtype.size)
        self._blob.read_into(chunk.start, memoryview(content))
        return list(struct.unpack(f"<{count}{form}", content)), chunk.sizes
