"""A bucket's folder to read from: listed with generations, which every later read must still find; read ahead in large ranges."""

from __future__ import annotations

from tuneline.checkpoints.disk import Bytes, Room
from tuneline.checkpoints.gcs import Bucket, Object, split_uri
from tuneline.checkpoints.ranges import Ranges
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tree import join

#: What is read of an object at once where nobody expected the read: headers lie close together.
_TAIL = 64 << 10
_CACHED = 8


class ObjectBlob:
    """One generation of an object."""

    def __init__(self, bucket: Bucket, item: Object, ranges: Ranges) -> None:
        self._bucket = bucket
        self._item = item
        self._ranges = ranges
        self._near: list[tuple[int, bytes]] = []

    @property
    def name(self) -> str:
        return f"gs://{self._bucket.name}/{self._item.name}"

    @property
    def size(self) -> int:
        return self._item.size

    @property
    def version(self) -> str:
        return self._item.generation

    def download(self, offset: int, out: memoryview) -> None:
        """Fill `out` by a read of its own."""
        if offset + len(out) > self.size:
            raise refused(self.name, f"ends at byte {self.size}, {offset + len(out) - self.size} bytes too early")
        self._bucket.read_into(self._item, offset, out)

    def read_into(self, offset: int, out: memoryview) -> None:
        if len(out) > _TAIL or offset + len(out) > self.size:
            self.download(offset, out)
            return
        for start, data in self._near:
            if start <= offset and offset + len(out) <= start + len(data):
                out[:] = data[offset - start : offset - start + len(out)]
                return
        # Items of a DCP file follow each other: the tail of one and the head of the next are read together.
        start = max(0, min(offset - _TAIL // 4, self.size - _TAIL))
        near = bytearray(min(_TAIL, self.size - start))
        self.download(start, memoryview(near))
        self._near = [*self._near[1 - _CACHED :], (start, bytes(near))]
        out[:] = near[offset - start : offset - start + len(out)]

    def fetch(self, offset: int, length: int, room: Room) -> Bytes:
        expected = self._ranges.fetch(self, offset, length)
        if expected is not None:
            return expected
        memory = room.take(length)
        self.download(offset, memory.data)
        return memory

    def expect(self, offset: int, length: int) -> None:
        if offset + length <= self.size:
            self._ranges.expect(self, offset, length)


class BucketTree:
    """gs://bucket/prefix as a folder."""

    def __init__(self, uri: str, bucket: Bucket | None = None) -> None:
        """Raises CheckpointError if nothing is there."""
        name, self._prefix = split_uri(uri)
        self._bucket = bucket or Bucket(name)
        self.name = join(f"gs://{name}", self._prefix)
        self._ranges = Ranges()
        self._listed: dict[str, tuple[dict[str, Object], list[str]]] = {}
        self._blobs: dict[str, ObjectBlob] = {}
        if not self.files("") and not self.folders(""):
            raise refused(uri, "holds nothing", next_move="give the folder of one step, for example gs://bucket/…/step_100, or of a run")

    def _list(self, under: str) -> tuple[dict[str, Object], list[str]]:
        if under not in self._listed:
            path = join(self._prefix, under)
            prefix = f"{path}/" if path else ""
            objects, folders = self._bucket.list(prefix)
            files = {item.name.removeprefix(prefix): item for item in objects if item.name != prefix}
            self._listed[under] = (files, sorted(folder.removeprefix(prefix).rstrip("/") for folder in folders))
        return self._listed[under]

    def files(self, under: str) -> dict[str, int]:
        return {name: item.size for name, item in self._list(under)[0].items()}

    def folders(self, under: str) -> list[str]:
        return self._list(under)[1]

    def open(self, relative: str) -> ObjectBlob:
        if relative not in self._blobs:
            folder, _, name = relative.rpartition("/")
            item = self._list(folder)[0].get(name) if ".." not in relative.split("/") else None
            if item is None:
                raise refused(join(self.name, relative), "cannot be opened: no such object")
            self._blobs[relative] = ObjectBlob(self._bucket, item, self._ranges)
        return self._blobs[relative]

    def close(self) -> None:
        self._ranges.close()
