"""A bucket as the place where conversions go: parts uploaded as they are made, composed to shards, copied to final names last.

Below `<prefix>/.convert-<fingerprint>.tmp/` lie parts, finished shards, and a record of the digest of each: a later attempt goes on from
them. Copies inside a bucket move no bytes through here. lineage.json is written last: a folder without it is not published.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from datetime import datetime
from pathlib import Path

from tuneline.checkpoints import crc
from tuneline.checkpoints.disk import Bytes
from tuneline.checkpoints.gcs import Bucket, Missing, Object, batches, split_uri
from tuneline.checkpoints.local import KEEP_SECONDS, Finish
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import Shard
from tuneline.checkpoints.tree import join
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.log import get_logger
from tuneline.lineage.digests import SIDECAR, FileDigest

#: A part of a shard: one upload.
PART_BYTES = 8 << 20

_log = get_logger("checkpoints")


def crc32c_of(data: bytes) -> int:
    """CRC-32C (Castagnoli) of bytes."""
    import google_crc32c

    return int(google_crc32c.value(data))


class PartSink:
    """A shard that becomes objects, a window each."""

    sequential = False

    def __init__(self, bucket: Bucket, name: str, size: int, part_bytes: int) -> None:
        self._bucket, self._name, self._size, self._part_bytes = bucket, name, size, part_bytes
        self._lock = threading.Lock()
        self._parts: dict[int, Object] = {}

    def write(self, start: int, data: Bytes) -> None:
        content = data.tobytes()  # what sends and sums it takes nothing that may change
        part = self._bucket.upload(f"{self._name}.part-{start // self._part_bytes:06d}", content, crc32c_of(content))
        with self._lock:
            self._parts[start] = part

    def close(self) -> None:
        """Compose the parts in their order, 32 at a time. CheckpointError if the whole has another sum than its parts."""
        row = [self._parts[start] for start in sorted(self._parts)]
        total = 0
        for part in row:
            total = crc.combine(total, part.crc32c, part.size, crc.CASTAGNOLI)
        level, made = 0, list(row)
        while len(row) > 32:
            level += 1
            row = [self._bucket.compose(f"{self._name}.join-{level}-{number:04d}", batch) for number, batch in enumerate(batches(row))]
            made += row
        whole = self._bucket.compose(self._name, row)
        if (whole.crc32c, whole.size) != (total, self._size):
            raise refused(
                f"gs://{self._bucket.name}/{self._name}", "is not what its parts make", asked=f"{total:08x}", found=f"{whole.crc32c:08x}"
            )
        for part in made:
            self._bucket.delete(part.name)

    def abort(self) -> None:
        for part in self._parts.values():
            self._bucket.delete(part.name)


class BucketWork:
    """One conversion on its way into `gs://bucket/prefix`."""

    def __init__(
        self, uri: str, fingerprint: str, *, bucket: Bucket | None = None, clock: Clock = SYSTEM, part_bytes: int = PART_BYTES
    ) -> None:
        name, self._prefix = split_uri(uri)
        self._bucket = bucket or Bucket(name)
        self._part_bytes = part_bytes
        self._staging = join(self._prefix, f".convert-{fingerprint[:16]}.tmp")
        self._small: dict[str, bytes] = {}
        self._remove_stale(clock.now())
        self._there = {item.name.removeprefix(f"{self._staging}/"): item for item in self._bucket.list(f"{self._staging}/", deep=True)[0]}

    def _remove_stale(self, now: float) -> None:
        """Delete what killed conversions left long ago."""
        start = f"{self._prefix}/" if self._prefix else ""
        for folder in self._bucket.list(start)[1]:
            if not folder.removeprefix(start).startswith(".convert-") or folder == f"{self._staging}/":
                continue
            objects = self._bucket.list(folder, deep=True)[0]
            if all(now - datetime.fromisoformat(item.updated).timestamp() > KEEP_SECONDS for item in objects):
                for item in objects:
                    self._bucket.delete(item.name)
                _log.info("removed gs://%s/%s, which a conversion had left", self._bucket.name, folder)

    def finished(self, shard: Shard) -> FileDigest | None:
        """The digest of a shard that an earlier process finished, None if it is not there as it was left."""
        item, record = self._there.get(shard.file), self._there.get(f"{shard.file}.json")
        if item is None or record is None or record.size > 1 << 16:
            return None
        content = bytearray(record.size)
        self._bucket.read_into(record, 0, memoryview(content))
        try:
            value = json.loads(content)
            matches = (value["generation"], value["size"]) == (item.generation, shard.nbytes) and item.size == shard.nbytes
            return FileDigest(shard.file, str(value["sha256"]), shard.nbytes) if matches else None
        except (ValueError, KeyError, TypeError):
            return None

    def open(self, shard: Shard) -> PartSink:
        """Begin a shard anew."""
        return PartSink(self._bucket, join(self._staging, shard.file), shard.nbytes, self._part_bytes)

    def done(self, digest: FileDigest) -> None:
        """A shard is whole in the bucket."""
        item = self._staged(digest.path)
        record = {"sha256": digest.sha256, "size": digest.size, "generation": item.generation}
        self._upload(join(self._staging, f"{digest.path}.json"), json.dumps(record).encode())

    def _staged(self, path: str) -> Object:
        name = join(self._staging, path)
        found = [item for item in self._bucket.list(name, deep=True)[0] if item.name == name]
        if not found:
            raise refused(f"gs://{self._bucket.name}/{name}", "is gone: something else deletes in this folder")
        return found[0]

    def put(self, relative: str, content: bytes) -> FileDigest:
        """Keep a small file; it is written when everything is published."""
        self._small[relative] = content
        return FileDigest(relative, hashlib.sha256(content).hexdigest(), len(content))

    def publish(self, digest: str, files: tuple[FileDigest, ...], finish: Finish | None) -> str:
        """Give all files their final names, `<prefix>/<digest>/…`; what is there already is verified. Returns the uri.

        Raises:
            CheckpointError: An object that is there has other bytes.
        """
        final = join(self._prefix, digest)
        uri = f"gs://{self._bucket.name}/{final}"
        there = {item.name.removeprefix(f"{final}/"): item for item in self._bucket.list(f"{final}/", deep=True)[0]}
        shards = {file.path: self._staged(file.path) for file in files if file.path not in self._small}
        sums = {path: item.crc32c for path, item in shards.items()} | {path: crc32c_of(content) for path, content in self._small.items()}
        faults = [f"{path} does not belong there" for path in sorted(there.keys() - sums.keys() - {SIDECAR})]
        faults += [f"{path} has other bytes" for path in sorted(there.keys() & sums.keys()) if there[path].crc32c != sums[path]]
        if faults:
            raise refused(
                uri,
                "was written before, and was changed since",
                found="; ".join(faults),
                next_move="find out who changed it, then remove it",
            )
        for path, item in shards.items():
            if path not in there and self._bucket.copy(item, f"{final}/{path}").crc32c != sums[path]:
                raise refused(f"{uri}/{path}", "was not copied as it is")
        for path, content in self._small.items():
            if path not in there:
                self._upload(f"{final}/{path}", content)
        if finish is not None and SIDECAR not in there:
            with tempfile.TemporaryDirectory() as scratch:
                finish(Path(scratch), files)
                for made in sorted(Path(scratch).iterdir()):
                    self._upload(f"{final}/{made.name}", made.read_bytes(), create_only=True)
        self.discard()
        return uri

    def _upload(self, name: str, content: bytes, *, create_only: bool = False) -> None:
        self._bucket.upload(name, content, crc32c_of(content), create_only=create_only)

    def discard(self) -> None:
        """Leave nothing."""
        try:
            for item in self._bucket.list(f"{self._staging}/", deep=True)[0]:
                self._bucket.delete(item.name)
        except Missing:
            return

    def keep(self) -> None:
        """Leave finished shards for a later conversion."""
        _log.warning("finished shards stay in gs://%s/%s; run the same conversion again to go on", self._bucket.name, self._staging)
