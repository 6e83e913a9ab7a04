"""Small JSON documents of a store, a folder or a bucket: errors, records, claims. Paths are those of `config.store`."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tuneline.core.clock import Deadline
from tuneline.core.errors import StoreError
from tuneline.core.files import create_only, read_json, write_json
from tuneline.gcp.calls import call, find, pauses
from tuneline.gcp.clients import REQUEST_SECONDS, Google
from tuneline.gcp.errors import Changed, translated

SECONDS = 300.0
_ONCE: dict[str, Any] = {"retry": None, "timeout": REQUEST_SECONDS}


class Documents(Protocol):
    """Documents by path; every write is whole or not there at all.

    Raises:
        GoogleError: From every method, where they lie in a bucket.
        StoreError: From `read` and `change`: the document is damaged.
    """

    def read(self, path: str) -> Any | None:
        """The value, None where there is none."""

    def read_bytes(self, path: str) -> bytes | None:
        """The document as it lies there, None where there is none."""

    def write(self, path: str, value: Any) -> None:
        """Put the value there, whatever was there."""

    def create(self, path: str, value: Any) -> bool:
        """Put the value there unless something is. True if this call did it, also where the answer to that was lost."""

    def change(self, path: str, edit: Callable[[Any | None], Any]) -> Any:
        """Put there what `edit` makes of what is there, so that no other writer's change is lost; `edit` may be called again."""

    def delete(self, path: str) -> None:
        """Take the document away, if it is there."""

    def names(self, folder: str) -> list[str]:
        """Paths of the documents right in a folder, in order."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every file below a folder, by its path within it."""


class Folder:
    """Documents in folders of this computer."""

    def read(self, path: str) -> Any | None:
        return read_json(Path(path)) if Path(path).is_file() else None

    def read_bytes(self, path: str) -> bytes | None:
        return Path(path).read_bytes() if Path(path).is_file() else None

    def write(self, path: str, value: Any) -> None:
        write_json(Path(path), value)

    def create(self, path: str, value: Any) -> bool:
        return create_only(Path(path), _dumped(value))

    def change(self, path: str, edit: Callable[[Any | None], Any]) -> Any:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file.with_name(f".{file.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            value = edit(self.read(path))
            write_json(file, value)
        return value

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        return sorted(str(path) for path in Path(folder).glob("*.json") if not path.name.startswith("."))

    def sizes(self, folder: str) -> dict[str, int]:
        root = Path(folder)
        return {path.relative_to(root).as_posix(): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}


class Bucket:
    """Documents as objects of a bucket; a generation that must match keeps writers from each other's work."""

    def __init__(self, google: Google, name: str) -> None:
        self._google, self._name = google, name

    def read(self, path: str) -> Any | None:
        return _parsed(path, self.read_bytes(path))

    def read_bytes(self, path: str) -> bytes | None:
        return self._read(path)[0]

    def write(self, path: str, value: Any) -> None:
        self._put(path, value, None)

    def create(self, path: str, value: Any) -> bool:
        # 412 may also be the answer to our own first try, whose answer was lost.
        return self._put(path, value, 0) or self.read(path) == value

    def change(self, path: str, edit: Callable[[Any | None], Any]) -> Any:
        until, pause = self._until(), pauses()
        while True:
            data, generation = self._read(path)
            found = _parsed(path, data)
            value = edit(found)
            if value == found or self._put(path, value, generation):
                return value
            if until.passed:
                raise StoreError(f"{path} is changed again and again by others", next_move="run again")
            self._google.clock.sleep(next(pause))

    def delete(self, path: str) -> None:
        blob = self._blob(path)
        find(self._google, f"delete {path}", lambda: blob.delete(**_ONCE), self._until())

    def names(self, folder: str) -> list[str]:
        return sorted(f"{folder}/{name}" for name in self.sizes(folder) if "/" not in name and name.endswith(".json"))

    def sizes(self, folder: str) -> dict[str, int]:
        prefix = f"{self._key(folder)}/"

        def send() -> dict[str, int]:
            found = self._google.storage.list_blobs(self._name, prefix=prefix, fields="items(name,size),nextPageToken", **_ONCE)
            return {blob.name.removeprefix(prefix): int(blob.size or 0) for blob in found if not blob.name.endswith("/")}

        return find(self._google, f"list {folder}", send, self._until()) or {}

    def _read(self, path: str) -> tuple[bytes | None, int]:
        """The bytes and their generation, (None, 0) where there are none."""
        bucket, key = self._google.storage.bucket(self._name), self._key(path)

        def send() -> tuple[bytes, int] | None:
            while (blob := bucket.get_blob(key, **_ONCE)) is not None:
                with suppress(*_replaced()):
                    return bytes(blob.download_as_bytes(if_generation_match=blob.generation, **_ONCE)), int(blob.generation)
            return None

        return find(self._google, f"read {path}", send, self._until()) or (None, 0)

    def _put(self, path: str, value: Any, generation: int | None) -> bool:
        """Write; False where another generation is there than must be (0: none)."""
        blob, what = self._blob(path), f"write {path}"

        def send() -> bool:
            try:
                with translated(what):
                    blob.upload_from_string(_dumped(value), content_type="application/json", if_generation_match=generation, **_ONCE)
            except Changed:
                return False
            return True

        return call(self._google, what, send, self._until())

    def _blob(self, path: str) -> Any:
        return self._google.storage.bucket(self._name).blob(self._key(path))

    def _key(self, path: str) -> str:
        bucket, _, key = path.removeprefix("gs://").partition("/")
        if bucket != self._name or not key:
            raise StoreError(f"{path} is not in bucket {self._name}", next_move="report this: a path of another store")
        return key

    def _until(self) -> Deadline:
        return Deadline.after(self._google.clock, SECONDS)


def open_documents(root: str, google: Google | None = None) -> Documents:
    """The documents of a store.

    Args:
        root: Absolute folder, or gs://BUCKET[/FOLDER].
        google: For a bucket; None takes the caller's own credentials.
    """
    if not root.startswith("gs://"):
        return Folder()
    return Bucket(google or Google(""), root.removeprefix("gs://").partition("/")[0])


def _parsed(path: str, data: bytes | None) -> Any | None:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is no JSON", found=str(error), next_move="restore it from a copy, or move it away") from error


def _dumped(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _replaced() -> tuple[type[Exception], ...]:
    """What a read of a generation meets that is gone by now."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    return NotFound, PreconditionFailed
