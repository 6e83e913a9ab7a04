"""The safetensors format: headers planned before a byte is written, greedy shards, and strict reading of both."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import BY_CODE, MAX_DIMENSIONS, MAX_EXTENT, Blob, DType

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

#: numpy has no bfloat16 and no fp8: those are read as raw words.
_NUMPY = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor to be written."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to be written.

    Attributes:
        header: All of its bytes before the first tensor; a multiple of 8.
        items: Its tensors in the order of their bytes, wide elements first so that each lies aligned to its own size.
    """

    file: str
    header: bytes
    items: tuple[Item, ...]

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(item.nbytes for item in self.items)


def plan_shards(items: Sequence[Item], max_shard_bytes: int) -> list[Shard]:
    """Files that take `items` in order of name, each filled until the next tensor would pass `max_shard_bytes` of tensor bytes.

    A tensor larger than that has a file of its own. One file is model.safetensors, several are model-0000i-of-0000n.safetensors.
    """
    groups: list[list[Item]] = [[]]
    filled = 0
    for item in sorted(items, key=lambda item: item.name):
        if groups[-1] and filled + item.nbytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += item.nbytes
    count = len(groups)
    files = [SINGLE] if count == 1 else [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    return [one_shard(file, group) for file, group in zip(files, groups, strict=True)]


def one_shard(file: str, group: Sequence[Item]) -> Shard:
    """One file with all of `group`."""
    ordered = tuple(sorted(group, key=lambda item: (-item.dtype.size, item.name)))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for item in ordered:
        header[item.name] = {"dtype": item.dtype.code, "shape": list(item.shape), "data_offsets": [at, at + item.nbytes]}
        at += item.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return Shard(file, struct.pack("<Q", len(text)) + text, ordered)


def index_json(shards: Sequence[Shard]) -> bytes:
    """model.safetensors.index.json of several files."""
    weight_map = {item.name: shard.file for shard in shards for item in shard.items}
    total = sum(item.nbytes for shard in shards for item in shard.items)
    value = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file: where its bytes are, counted from the start of the file."""

    dtype: DType
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(blob: Blob) -> tuple[dict[str, Entry], dict[str, Any]]:
    """(the tensors by name, the metadata) in the header of a safetensors file.

    Raises:
        CheckpointError: The header is malformed, or its tensors do not fill the file exactly.
    """
    where = blob.name
    if blob.size < 8:
        raise refused(where, f"is no safetensors file ({blob.size} bytes)")
    (length,) = struct.unpack("<Q", _read(blob, 0, 8))
    if length > min(MAX_HEADER_BYTES, blob.size - 8):
        raise refused(where, f"is no safetensors file, or is cut short (a header of {length} bytes in a file of {blob.size})")
    try:
        header = json.loads(_read(blob, 8, length), object_pairs_hook=_unique)
        entries = {name: _entry(value, 8 + length) for name, value in header.items() if name != "__metadata__"}
        metadata = dict(header.get("__metadata__", {}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refused(where, f"has a malformed header ({error})") from error
    at = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at or entry.end - entry.start != math.prod(entry.shape) * entry.dtype.size:
            raise refused(where, f"has a hole, an overlap or a wrong size at {name!a}")
        at = entry.end
    if at != blob.size:
        raise refused(where, f"has {blob.size} bytes, its header describes {at}")
    return entries, metadata


def _read(blob: Blob, offset: int, length: int) -> bytes:
    content = bytearray(length)
    blob.read_into(offset, memoryview(content))
    return bytes(content)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is set twice")
    return value


def _entry(value: Any, base: int) -> Entry:
    start, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if len(shape) > MAX_DIMENSIONS or any(type(number) is not int or not 0 <= number <= MAX_EXTENT for number in (start, end, *shape)):
        raise ValueError("an offset or extent is no natural number, or too large")
    return Entry(BY_CODE[value["dtype"]], shape, base + start, base + end)


def read_tensor(path: Path, name: str) -> npt.NDArray[Any]:
    """One tensor of a file on a disk; bfloat16 as uint16 and fp8 as uint8, bits unchanged.

    Raises:
        CheckpointError: The file is malformed or has no such tensor.
    """
    blob = FileBlob(path)
    try:
        entries, _ = read_header(blob)
        if name not in entries:
            raise refused(path, f"has no tensor {name!a}", choices=sorted(entries)[:20])
        entry = entries[name]
        data = blob.read(entry.start, entry.end - entry.start)
    finally:
        blob.close()
    return np.frombuffer(data, dtype=np.dtype(_NUMPY[entry.dtype.code])).reshape(entry.shape)
