"""Reading a torch.distributed.checkpoint (DCP) folder without torch.

`.metadata` is a pickle of shapes, chunks and places; each place is a range of a `.distcp` file that holds what torch.save wrote.
"""

from __future__ import annotations

from typing import Any

from tuneline.checkpoints.pickles import Allowed, Record, describe, load
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Chunk, Tensor
from tuneline.checkpoints.torchsave import DTYPE_NAMES, dtype_of, extents, read_item
from tuneline.checkpoints.tree import Tree, join, read_small
from tuneline.core.errors import CheckpointError

METADATA = ".metadata"
#: 320,000 chunks take 58 MB.
MAX_METADATA_BYTES = 128 << 20

_MODULE = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"
_ALLOWED: Allowed = DTYPE_NAMES | {
    *(
        (_MODULE, name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    (_FILESYSTEM, "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}

Place = tuple[str, int, int]  # relative path, offset, length


def read_dcp(folder: Tree, under: str = "") -> list[Tensor]:
    """The model's tensors in the DCP folder `under` under their Hugging Face names, sorted; what is not the model's is left out.

    Raises:
        CheckpointError: The metadata or an item is not what torch writes, or they disagree. Cover is not proved here.
    """
    blob = folder.open(join(under, METADATA))
    if blob.size > MAX_METADATA_BYTES:
        raise refused(blob.name, f"has {blob.size} bytes, at most {MAX_METADATA_BYTES} expected")
    metadata = load(read_small(folder, join(under, METADATA)), _ALLOWED, blob.name)
    fields = _fields(metadata, f"{_MODULE}.Metadata", blob.name)
    if "planner_data" not in fields:  # None is right where names are flat; without the field, names would be taken for flat
        raise refused(blob.name, "has no planner_data")
    described = _dict(fields.get("state_dict_metadata"), blob.name)
    places = _places(_dict(fields.get("storage_data"), blob.name), under, blob.name)
    _check_apart(folder, places)
    entries = {fqn: entry for fqn, entry in described.items() if _kind(entry) == f"{_MODULE}.TensorStorageMetadata"}
    names = model_names(entries, fields["planner_data"], blob.name)
    return [_tensor(folder, fqn, name, entries[fqn], places, blob.name) for fqn, name in sorted(names.items(), key=lambda item: item[1])]


def model_names(fqns: dict[Any, Any], planner_data: Any, where: str) -> dict[str, str]:
    """Hugging Face names of the tensors that are the model's, by their DCP names.

    A state dict saved as {"model": …} (NeMo RL v1) has paths ("model", "<name>") in planner_data, a flat one (NeMo RL v2, the trl
    engine) ("<name>",). Only the paths tell: "model.norm.weight" may be either's.

    Raises:
        CheckpointError: A tensor has no path, two have one name, or none is the model's.
    """
    if not all(isinstance(fqn, str) for fqn in fqns):
        raise refused(where, "has a tensor whose name is no text")
    paths: dict[str, tuple[str, ...]] = {fqn: (fqn,) for fqn in fqns}
    if planner_data is not None:
        recorded = _dict(planner_data, where)
        for fqn in fqns:
            path = recorded.get(fqn)
            if not isinstance(path, tuple) or not path or not all(isinstance(part, str | int) for part in path):
                raise refused(where, f"has no path in planner_data for {describe(fqn)}")
            paths[fqn] = tuple(str(part) for part in path)
    nested = {fqn: path[1:] for fqn, path in paths.items() if path[0] == "model" and len(path) > 1}
    chosen = nested or {fqn: path for fqn, path in paths.items() if len(path) == 1}
    if not chosen:
        roots = sorted({path[0] for path in paths.values()})
        raise refused(where, "holds no model tensors", found=f"top-level keys: {', '.join(map(ascii, roots[:20])) or 'none'}")
    names = {fqn: ".".join(path) for fqn, path in chosen.items()}
    for name in names.values():
        if not name.isprintable() or not 0 < len(name) <= 1024 or name == "__metadata__":
            raise refused(where, f"has a tensor named {describe(name)}")
    if len(set(names.values())) != len(names):
        raise refused(where, "has two tensors of one name")
    return names


def _tensor(folder: Tree, fqn: str, name: str, entry: Any, places: dict[Any, Place], where: str) -> Tensor:
    origin = f"{where}: {fqn!a}"
    fields = _fields(entry, f"{_MODULE}.TensorStorageMetadata", origin)
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, Record) else None
    if not isinstance(state, tuple) or not state:
        raise refused(origin, "has no dtype")
    dtype = dtype_of(state[0], origin)
    shape = extents(fields.get("size"), origin)
    boxes = fields.get("chunks")
    if not isinstance(boxes, list):
        raise refused(origin, "has no list of chunks")
    chunks = []
    for box in boxes:
        described = _fields(box, f"{_MODULE}.ChunkStorageMetadata", origin)
        offsets, sizes = extents(described.get("offsets"), origin), extents(described.get("sizes"), origin)
        if 0 in sizes:  # a rank without a part of this tensor
            continue
        place = places.get((fqn, offsets))
        if place is None:
            raise refused(origin, "has a chunk that is in no file", found=f"offsets {list(offsets)}, sizes {list(sizes)}")
        blob = folder.open(place[0])
        stored = read_item(blob, place[1], place[2])
        if stored.dtype != dtype or stored.shape != sizes:
            raise refused(
                f"{blob.name} at byte {place[1]}",
                f"is not the chunk of {fqn!a} that .metadata describes",
                asked=f"{list(sizes)} of {dtype.name}",
                found=f"{list(stored.shape)} of {stored.dtype.name}",
            )
        chunks.append(Chunk(offsets, sizes, blob, stored.start, stored.crc32))
    return Tensor(name, dtype, shape, tuple(chunks), origin)


def _places(storage_data: dict[Any, Any], under: str, where: str) -> dict[Any, Place]:
    """Places by (DCP name, offsets of the chunk), or by (DCP name, None) for what is no tensor."""
    places: dict[Any, Place] = {}
    for index, info in storage_data.items():
        key = _fields(index, f"{_MODULE}.MetadataIndex", where)
        fqn, offset = key.get("fqn"), key.get("offset")
        if not isinstance(fqn, str):
            raise refused(where, "has a place for what has no name")
        at = f"{where}: {fqn!a}"
        place = _fields(info, f"{_FILESYSTEM}._StorageInfo", at)
        path, start, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if not isinstance(path, str) or type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise refused(at, "has a place that is no file, offset and length")
        if place.get("transform_descriptors"):
            raise refused(at, "was written through a transform (compressed or encrypted)", next_move="save without stream extensions")
        identity = (fqn, None if offset is None else extents(offset, at))
        if identity in places:
            raise refused(at, "has two places for one chunk")
        places[identity] = (_inside(path, under, at), start, length)
    return places


def _inside(path: str, under: str, where: str) -> str:
    """`path`, relative to the folder with .metadata, as a path of the tree; CheckpointError if it leads out of that folder."""
    if path.startswith("/") or ".." in path.split("/"):
        raise refused(where, "names a file outside itself", found=ascii(path[:200]))
    return join(under, path)


def _check_apart(folder: Tree, places: dict[Any, Place]) -> None:
    """Items must not share bytes: a small file could stand for any number of tensors. Ranges past the end are found here too."""
    ordered = sorted((path, start, length, str(identity[0])) for identity, (path, start, length) in places.items())
    previous = ("", 0, "")
    for path, start, length, fqn in ordered:
        blob = folder.open(path)
        if start + length > blob.size:
            raise refused(blob.name, f"is cut short: {blob.size} bytes, {fqn!a} lies at {start}-{start + length}")
        if previous[0] == path and start < previous[1]:
            raise refused(blob.name, f"holds {previous[2]!a} and {fqn!a} in the same bytes, at {start}")
        previous = (path, start + length, fqn)


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Record) else ""


def _fields(value: Any, kind: str, where: str) -> dict[str, Any]:
    if _kind(value) != kind:
        raise _unexpected(value, kind.rsplit(".", 1)[1], where)
    fields: dict[str, Any] = value.fields()
    return fields


def _dict(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _unexpected(value, "dict", where)
    return value


def _unexpected(value: Any, expected: str, where: str) -> CheckpointError:
    return refused(where, f"has {describe(value)} where a {expected} must be")
