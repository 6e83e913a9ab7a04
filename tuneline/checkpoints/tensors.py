"""What every reader yields and every writer takes: tensors as boxes of bytes that lie somewhere in files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuneline.checkpoints.disk import Bytes, Room

#: Bounds on what a checkpoint may claim, far above any model: they keep arithmetic and error texts small.
MAX_DIMENSIONS = 16
MAX_EXTENT = 1 << 40
MAX_BYTES = 1 << 52


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: torch's name, as in torch.bfloat16.
        code: The name in a safetensors header.
        size: Bytes an element.
        castable: A float that a dtype policy may cast; fp8 is not, for its scales live elsewhere.
    """

    name: str
    code: str
    size: int
    castable: bool = False


BF16 = DType("bfloat16", "BF16", 2, True)
F16 = DType("float16", "F16", 2, True)
F32 = DType("float32", "F32", 4, True)
F64 = DType("float64", "F64", 8, True)
DTYPES = (
    BF16,
    F16,
    F32,
    F64,
    DType("float8_e4m3fn", "F8_E4M3", 1),
    DType("float8_e5m2", "F8_E5M2", 1),
    DType("int8", "I8", 1),
    DType("int16", "I16", 2),
    DType("int32", "I32", 4),
    DType("int64", "I64", 8),
    DType("uint8", "U8", 1),
    DType("uint16", "U16", 2),
    DType("uint32", "U32", 4),
    DType("uint64", "U64", 8),
    DType("bool", "BOOL", 1),
)
BY_TORCH_NAME = {dtype.name: dtype for dtype in DTYPES}
BY_CODE = {dtype.code: dtype for dtype in DTYPES}


class Blob(Protocol):
    """Bytes with random access, safe to read from several threads."""

    @property
    def name(self) -> str:
        """What error messages call it."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def version(self) -> str:
        """Another one if the bytes were changed: what a file's time or an object's generation tells."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset` on; CheckpointError if the bytes end before that."""

    def fetch(self, offset: int, length: int, room: Room) -> Bytes:
        """`length` bytes from `offset` on, valid until `room` is used again; CheckpointError if the bytes end before that."""

    def expect(self, offset: int, length: int) -> None:
        """`length` bytes from `offset` on will be fetched soon, in the order in which they are expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A box of a tensor, stored row-major and contiguous.

    Attributes:
        offsets: Where the box begins in the tensor, elements in each dimension.
        sizes: Its extent, elements in each dimension.
        blob: Where its bytes are.
        start: Byte offset of its first element in `blob`.
        crc32: CRC-32 of its bytes as recorded by the writer, None where there is none.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    blob: Blob
    start: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A whole tensor: its global shape and the chunks that make it up.

    Attributes:
        name: Hugging Face name.
        origin: What error messages call it: the file that describes it and its name there.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    origin: str = ""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether `stride` (elements) lays `shape` out row-major without gaps; extents of 1 may have any stride."""
    if math.prod(shape) == 0:
        return True
    expected = 1
    for extent, step in zip(reversed(shape), reversed(stride), strict=True):
        if extent != 1:
            if step != expected:
                return False
            expected *= extent
    return True
