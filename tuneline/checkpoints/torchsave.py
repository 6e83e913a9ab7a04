"""What torch.save wrote, read without torch: the description of a tensor and where its bytes are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuneline.checkpoints.pickles import Allowed, Name, Record, describe, load
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import BY_TORCH_NAME, DTYPES, MAX_DIMENSIONS, MAX_EXTENT, Blob, DType, is_contiguous
from tuneline.checkpoints.zips import Archive, Span

#: torch's typed storages; dtypes that came later are saved as an UntypedStorage and name their dtype.
STORAGES = {
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
DTYPE_NAMES: Allowed = frozenset(("torch", dtype.name) for dtype in DTYPES)
TENSOR_NAMES: Allowed = DTYPE_NAMES | {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch.storage", "UntypedStorage"),
    ("collections", "OrderedDict"),
    *(("torch", name) for name in STORAGES),
}

_MAX_PICKLE = 64 << 10
_MAX_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A contiguous tensor that fills its storage.

    Attributes:
        start: Byte offset of its first element in the blob.
        crc32: CRC-32 of its bytes, None where it was saved without.
    """

    dtype: DType
    shape: tuple[int, ...]
    start: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What a pickled tensor says of itself: extents, strides and offset in elements."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    storage_key: str
    storage_bytes: int


def extents(value: Any, where: str) -> tuple[int, ...]:
    """A torch.Size, or a plain tuple of sizes, as ints from 0 to MAX_EXTENT; CheckpointError if it is none."""
    if isinstance(value, Record) and value.kind == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
        raise refused(where, f"has {describe(value)} where a shape must be")
    for extent in value:
        if type(extent) is not int or not 0 <= extent <= MAX_EXTENT:
            raise refused(where, f"has {describe(extent)} as the extent of a dimension")
    return tuple(value)


def dtype_of(value: Any, where: str) -> DType:
    """The dtype that a global such as torch.bfloat16 names; CheckpointError if it names none that is known."""
    if isinstance(value, Name) and value.module == "torch" and value.name in BY_TORCH_NAME:
        return BY_TORCH_NAME[value.name]
    raise refused(where, f"has {describe(value)} where a dtype must be", choices=[dtype.name for dtype in DTYPES])


def tensor_record(value: Any, where: str) -> TensorRecord:
    """What `value`, a `_rebuild_tensor_v2` or `_v3` record, says. CheckpointError if it is none."""
    kinds = {"torch._utils._rebuild_tensor_v2": 6, "torch._utils._rebuild_tensor_v3": 7}
    if not isinstance(value, Record) or value.kind not in kinds or len(value.args) < kinds[value.kind]:
        raise refused(where, f"holds {describe(value)} where a tensor must be")
    storage, offset, shape, stride = value.args[:4]
    pid = storage.args[0] if isinstance(storage, Record) and storage.kind == "persistent_id" else None
    if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], Name) or not isinstance(pid[2], str):
        raise refused(where, "holds a tensor without a storage")
    if type(pid[4]) is not int or type(offset) is not int or not 0 <= pid[4] <= MAX_EXTENT or not 0 <= offset <= MAX_EXTENT:
        raise refused(where, "holds a tensor whose storage has no valid size or offset")
    if value.kind.endswith("v3"):
        dtype = dtype_of(value.args[6], where)
    else:
        dtype = dtype_of(Name("torch", STORAGES.get(pid[1].name, pid[1].name)), where)
    storage_bytes = pid[4] if pid[1].name == "UntypedStorage" else pid[4] * dtype.size
    shape, stride = extents(shape, where), extents(stride, where)
    if len(shape) != len(stride):
        raise refused(where, "holds a tensor with more strides than dimensions, or fewer")
    return TensorRecord(dtype, shape, stride, offset, pid[2], storage_bytes)


def read_item(blob: Blob, start: int, length: int) -> StoredTensor:
    """The tensor in one item of a DCP file: a torch.save zip at `start`, `length` bytes long.

    Raises:
        CheckpointError: It is no such zip, or its parts disagree about the tensor's bytes.
    """
    span = Span(blob, start, length)
    archive = Archive(span, max_entries=_MAX_ENTRIES)
    roots = [name.removesuffix("data.pkl") for name in archive.entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise refused(span.name, "is not what torch.save writes (it needs exactly one data.pkl)")
    root = roots[0]
    if f"{root}byteorder" in archive.entries and archive.read(f"{root}byteorder", max_bytes=16) != b"little":
        raise refused(span.name, "was not written on a little-endian machine")
    record = tensor_record(load(archive.read(f"{root}data.pkl", max_bytes=_MAX_PICKLE), TENSOR_NAMES, span.name), span.name)
    content, entry = archive.locate(f"{root}data/{record.storage_key}")
    numel = 1
    for extent in record.shape:
        numel *= extent
    if not entry.size == record.storage_bytes == numel * record.dtype.size or record.storage_offset:
        raise refused(
            span.name,
            "holds a tensor that does not fill its storage",
            found=f"shape {list(record.shape)} of {record.dtype.name}, {entry.size} bytes stored, offset {record.storage_offset}",
        )
    if not is_contiguous(record.shape, record.stride):
        raise refused(span.name, "holds a tensor that is not contiguous", found=f"shape {list(record.shape)}, stride {list(record.stride)}")
    return StoredTensor(record.dtype, record.shape, start + content, entry.crc32 if archive.has_sums else None)
