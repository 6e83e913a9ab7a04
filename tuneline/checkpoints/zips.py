"""Where the entries of a torch.save zip lie, by its central directory: stored entries only, zip64 included.

Python's zipfile is not used: it needs a file object, searches for its end record and skips what precedes the archive. Here an archive
is exactly a range of bytes, and an entry's place is held by its local header, its central header and what follows it agreeing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Blob
from tuneline.core.errors import CheckpointError

_END = struct.Struct("<4s4H2IH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_EXTRA = struct.Struct("<HH")
_DESCRIPTOR = struct.Struct("<4s3I")
_DESCRIPTOR64 = struct.Struct("<4sI2Q")

_HAS_DESCRIPTOR, _UTF8 = 0x8, 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_HEAD, _TAIL = 1024, 2048


class Span:
    """A range of a blob whose first and last bytes are read once: an item's headers are there."""

    def __init__(self, blob: Blob, start: int, length: int) -> None:
        """Raises CheckpointError if the range is not inside the blob."""
        self.name = f"{blob.name} bytes {start}-{start + length}"
        if start < 0 or length < 0 or start + length > blob.size:
            raise refused(blob.name, f"is shorter than its metadata says: {blob.size} bytes, an item lies at {start}-{start + length}")
        self.blob, self.start, self.length = blob, start, length
        self._head = self._fetch(0, min(_HEAD, length))
        self._tail_at = max(0, length - _TAIL)
        self._tail = self._fetch(self._tail_at, length - self._tail_at)

    def _fetch(self, offset: int, length: int) -> bytes:
        out = bytearray(length)
        self.blob.read_into(self.start + offset, memoryview(out))
        return bytes(out)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` (relative to the span) on; CheckpointError outside of it."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise refused(self.name, "is a malformed zip (a header points outside of it)")
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        if offset >= self._tail_at:
            return self._tail[offset - self._tail_at : offset - self._tail_at + length]
        return self._fetch(offset, length)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry of an archive.

    Attributes:
        header: Offset of its local header in the span.
        limit: Offset in the span where the next local header or the central directory begins.
        size: Bytes of content.
    """

    name: str
    header: int
    limit: int
    size: int
    crc32: int
    flags: int


class Archive:
    """A zip that fills a span."""

    def __init__(self, span: Span, *, max_entries: int) -> None:
        """Raises CheckpointError if the span is no such zip, or has more than `max_entries` entries."""
        self.span = span
        try:
            self.entries = self._read_central(max_entries)
        except (struct.error, UnicodeDecodeError) as error:
            raise self._malformed("a cut or undecodable header") from error
        #: False where torch.serialization.set_crc32_options(False) left every sum zero.
        self.has_sums = any(entry.crc32 for entry in self.entries.values())

    def _malformed(self, reason: str) -> CheckpointError:
        return refused(self.span.name, f"is a malformed zip ({reason})")

    def _directory(self) -> tuple[int, int, int]:
        """(count of entries, size, offset) of the central directory, which must end where the end records begin."""
        at = self.span.length - _END.size
        if at < 0:
            raise self._malformed("too short")
        signature, disk, first_disk, on_disk, count, size, offset, comment = _END.unpack(self.span.read(at, _END.size))
        if signature != b"PK\5\6" or comment:
            raise self._malformed("no end record at its end")
        narrow = (on_disk, count, size, offset)
        locator_at = at - _END64_LOCATOR.size
        if locator_at >= 0 and self.span.read(locator_at, 4) == b"PK\6\7":  # torch writes it whether needed or not
            _, _, at64, disks = _END64_LOCATOR.unpack(self.span.read(locator_at, _END64_LOCATOR.size))
            at = locator_at - _END64.size
            signature, _, _, _, disk, first_disk, on_disk, count, size, offset = _END64.unpack(self.span.read(at, _END64.size))
            if signature != b"PK\6\6" or disks > 1 or at64 != at:
                raise self._malformed("its zip64 end record is not where its locator says")
            wide = (on_disk, count, size, offset)
            if any(
                short not in (full, limit) for short, full, limit in zip(narrow, wide, (_FULL16, _FULL16, _FULL32, _FULL32), strict=True)
            ):
                raise self._malformed("its two end records differ")
        if disk or first_disk or on_disk != count or offset + size != at:
            raise self._malformed("its central directory is not where the end record says")
        return count, size, offset

    def _read_central(self, max_entries: int) -> dict[str, Entry]:
        count, size, directory = self._directory()
        if count > max_entries or size > max_entries * 1024:
            raise self._malformed(f"{count} entries in {size} bytes, more than expected")
        data = self.span.read(directory, size)
        found: list[tuple[str, int, int, int, int]] = []
        at = 0
        for _ in range(count):
            signature, _, _, flags, method, _, _, crc, packed, unpacked, names, extras, comments, disk, _, _, header = _CENTRAL.unpack_from(
                data, at
            )
            at += _CENTRAL.size
            name = data[at : at + names].decode()
            extra = data[at + names : at + names + extras]
            at += names + extras + comments
            if signature != b"PK\1\2" or at > size:
                raise self._malformed("a broken central directory")
            unpacked, packed, header = self._widen(extra, unpacked, packed, header)
            if method != 0 or packed != unpacked:
                raise self._malformed(f"{name!a} is compressed, torch stores")
            if flags & ~(_HAS_DESCRIPTOR | _UTF8) or disk:
                raise self._malformed(f"{name!a} has flags that torch does not set")
            found.append((name, header, unpacked, crc, flags))
        if at != size:
            raise self._malformed("bytes after the central directory")
        found.sort(key=lambda entry: entry[1])
        if not found or found[0][1] != 0 or len({entry[0] for entry in found}) != count:
            raise self._malformed("no entries, doubled entries, or bytes before the first")
        limits = [entry[1] for entry in found[1:]] + [directory]
        return {
            name: Entry(name, header, limit, size, crc, flags)
            for (name, header, size, crc, flags), limit in zip(found, limits, strict=True)
        }

    def _widen(self, extra: bytes, *values: int) -> list[int]:
        """`values` (32 bits each) with those that are full taken from the zip64 field of `extra`."""
        wide = iter(())
        for tag, content in self._fields(extra):
            if tag == 1:
                wide = iter(struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8]))
        widened = [next(wide, None) if value == _FULL32 else value for value in values]
        if None in widened:
            raise self._malformed("a zip64 field is missing")
        return [value for value in widened if value is not None]

    def _fields(self, extra: bytes) -> list[tuple[int, bytes]]:
        """The (tag, content) fields of an extra block, which they must fill exactly."""
        fields = []
        at = 0
        while at < len(extra):
            tag, size = _EXTRA.unpack_from(extra, at)
            at += _EXTRA.size
            if at + size > len(extra):
                raise self._malformed("a broken extra field")
            fields.append((tag, extra[at : at + size]))
            at += size
        return fields

    def locate(self, name: str) -> tuple[int, Entry]:
        """(offset of the content in the span, the entry) of `name`.

        Raises:
            CheckpointError: There is no such entry, or its headers contradict each other.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise self._malformed(f"it has no {name!a}")
        try:
            start = self._content(entry)
        except struct.error as error:
            raise self._malformed("a cut header") from error
        return start, entry

    def _content(self, entry: Entry) -> int:
        read: Callable[[int, int], bytes] = self.span.read
        signature, _, flags, method, _, _, crc, packed, unpacked, names, extras = _LOCAL.unpack(read(entry.header, _LOCAL.size))
        at = entry.header + _LOCAL.size
        if signature != b"PK\3\4" or flags != entry.flags or method != 0 or read(at, names) != entry.name.encode():
            raise self._malformed(f"the two headers of {entry.name} differ")
        self._fields(read(at + names, extras))
        start: int = at + names + extras
        end = start + entry.size
        if flags & _HAS_DESCRIPTOR:
            wide = entry.limit - end == _DESCRIPTOR64.size
            form = _DESCRIPTOR64 if wide else _DESCRIPTOR
            if end + form.size != entry.limit or form.unpack(read(end, form.size)) != (b"PK\7\x08", entry.crc32, entry.size, entry.size):
                raise self._malformed(f"what follows {entry.name} does not close it")
        elif end != entry.limit or crc != entry.crc32 or not {packed, unpacked} <= {entry.size, _FULL32}:
            raise self._malformed(f"the two headers of {entry.name} differ")
        return start

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """The whole content of a small entry; CheckpointError if it is larger or damaged."""
        start, entry = self.locate(name)
        if entry.size > max_bytes:
            raise self._malformed(f"{name} has {entry.size} bytes, at most {max_bytes} expected")
        content = self.span.read(start, entry.size)
        if self.has_sums and zlib.crc32(content) != entry.crc32:
            raise self._malformed(f"{name} is damaged: its CRC-32 is not the one written")
        return content
