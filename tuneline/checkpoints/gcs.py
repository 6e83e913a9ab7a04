"""The few calls of Cloud Storage's JSON API that conversion needs, each tried again where that can help.

Google's own client is not used for data: it copies what it reads, checks no generation between ranges and sums no parts. Its
authentication and its emulator convention (STORAGE_EMULATOR_HOST) are.
"""

from __future__ import annotations

import base64
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tuneline.checkpoints.refusal import refused
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import StoreError
from tuneline.core.log import get_logger

_TRANSIENT = frozenset((408, 429, 500, 502, 503, 504))
#: Waits of 0.5, 1, 2 … 32 s, each with jitter: about three minutes of trouble are survived.
ATTEMPTS = 10
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 32.0
_TIMEOUT = (10, 60)  # seconds to connect, and between two bytes
_CONNECTIONS = 64

_log = get_logger("checkpoints")


@dataclass(frozen=True)
class Object:
    """An object as the bucket lists it: bytes, and the CRC-32C of them."""

    name: str
    size: int
    generation: str
    crc32c: int
    updated: str


class Missing(Exception):
    """404: no such object, or no such generation of it."""


def split_uri(uri: str) -> tuple[str, str]:
    """(bucket, prefix without slashes at its ends) of gs://bucket/prefix. CheckpointError if it is none."""
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not bucket:
        raise refused(uri, "is no gs://bucket/prefix")
    return bucket, prefix.strip("/")


def new_session() -> Any:
    """An HTTP session that signs requests with the default credentials; unsigned against an emulator."""
    import requests
    from requests.adapters import HTTPAdapter

    session: Any
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        session = requests.Session()
    else:
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        session = AuthorizedSession(credentials)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))
    return session


class Bucket:
    """One bucket."""

    def __init__(self, name: str, *, session: Any = None, clock: Clock = SYSTEM) -> None:
        host = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
        self.name = name
        self._root = host if "://" in host else f"http://{host}"
        self._session = session or new_session()
        self._clock = clock

    def _url(self, path: str, name: str | None = None) -> str:
        url = f"{self._root}{path}/b/{quote(self.name, safe='')}/o"
        return url if name is None else f"{url}/{quote(name, safe='')}"

    def _try(self, what: str, call: Callable[[], Any]) -> Any:
        """`call()`, again and again while its trouble may pass.

        Raises:
            Missing: 404.
            StoreError: It is refused, or the trouble did not pass.
        """
        import requests

        wait = _FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except _Status as status:
                if status.code == 404:
                    raise Missing(f"gs://{self.name}: {what}") from None
                trouble = f"status {status.code}: {status.text}"
                if status.code not in _TRANSIENT:
                    hint = "grant the caller storage.objectUser on the bucket" if status.code in (401, 403) else ""
                    raise StoreError(f"gs://{self.name}: {what} was refused", found=trouble, next_move=hint) from None
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError, _Damaged) as error:
                trouble = str(error)[:300]
            if attempt < ATTEMPTS:
                _log.debug("gs://%s: %s: %s; tried again", self.name, what, trouble)
                self._clock.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(_LONGEST_WAIT, 2 * wait)
        raise StoreError(
            f"gs://{self.name}: {what} failed {ATTEMPTS} times", found=trouble, next_move="run it again; it goes on from what is finished"
        )

    def _json(self, what: str, method: str, url: str, **arguments: Any) -> dict[str, Any]:
        def call() -> Any:
            with self._session.request(method, url, timeout=_TIMEOUT, **arguments) as response:
                _check(response)
                return response.json() if response.content else {}

        value: dict[str, Any] = self._try(what, call)
        return value

    def list(self, prefix: str, *, deep: bool = False) -> tuple[list[Object], list[str]]:
        """(objects, names of folders) directly in `prefix`, which ends with `/` or is empty; all objects below it where `deep`."""
        objects, folders, token = [], [], ""
        while True:
            query = {"prefix": prefix, "fields": "items(name,size,generation,crc32c,updated),prefixes,nextPageToken", "maxResults": "1000"}
            query |= {} if deep else {"delimiter": "/"}
            query |= {"pageToken": token} if token else {}
            page = self._json(f"listing {prefix}", "GET", self._url("/storage/v1"), params=query)
            objects += [_object(item) for item in page.get("items", ())]
            folders += page.get("prefixes", ())
            token = page.get("nextPageToken", "")
            if not token:
                return objects, folders

    def read_into(self, item: Object, offset: int, out: memoryview) -> None:
        """Fill `out` from byte `offset` of exactly this generation on; a lost connection goes on where it broke.

        Raises:
            CheckpointError: The object was replaced or deleted.
            StoreError: It cannot be read.
        """
        done = 0

        def call() -> None:
            nonlocal done
            headers = {"Range": f"bytes={offset + done}-{offset + len(out) - 1}", "Accept-Encoding": "identity"}
            query = {"alt": "media", "generation": item.generation}
            url = self._url("/download/storage/v1", item.name)
            with self._session.get(url, params=query, headers=headers, stream=True, timeout=_TIMEOUT) as response:
                _check(response)
                generation = response.headers.get("X-Goog-Generation", item.generation)
                if response.status_code != 206 or generation != item.generation:
                    raise Missing
                while done < len(out):
                    count = _read_some(response, out[done:])
                    if not count:
                        raise _Damaged(f"the connection ended at byte {offset + done}")
                    done += count

        if not out:
            return
        try:
            self._try(f"reading {item.name}", call)
        except Missing:
            raise refused(
                f"gs://{self.name}/{item.name}",
                "was replaced or deleted while it was read",
                asked=f"generation {item.generation}",
                next_move="wait until nothing writes to the checkpoint, then convert it again",
            ) from None

    def upload(self, name: str, data: bytes, crc32c: int, *, create_only: bool = False) -> Object:
        """Write an object of the bytes `data`, whose CRC-32C the bucket must find to be `crc32c`.

        Raises:
            StoreError: It cannot be written, or is there already where `create_only`.
        """
        query = {"uploadType": "media", "name": name} | ({"ifGenerationMatch": "0"} if create_only else {})
        # The bucket itself refuses bytes of another sum.
        headers = {"Content-Type": "application/octet-stream", "X-Goog-Hash": f"crc32c={encode_crc32c(crc32c)}"}

        def call() -> Object:
            with self._session.post(
                self._url("/upload/storage/v1"), params=query, headers=headers, data=data, timeout=_TIMEOUT
            ) as response:
                _check(response)
                made = _object(response.json())
            if made.crc32c != crc32c or made.size != len(data):
                raise _Damaged(f"{name} arrived with CRC-32C {made.crc32c:08x} and {made.size} bytes")
            return made

        made: Object = self._try(f"writing {name}", call)
        return made

    def compose(self, name: str, sources: Sequence[Object]) -> Object:
        """Make `name` of up to 32 objects, one after another."""
        body = {"sourceObjects": [{"name": source.name, "generation": source.generation} for source in sources], "destination": {}}
        headers = {"Content-Type": "application/json"}
        url = self._url("/storage/v1", name) + "/compose"
        return _object(self._json(f"composing {name}", "POST", url, data=json.dumps(body), headers=headers))

    def copy(self, source: Object, name: str) -> Object:
        """Copy an object inside the bucket; the bucket does it, no bytes come here."""
        token = ""
        url = f"{self._url('/storage/v1', source.name)}/rewriteTo/b/{quote(self.name, safe='')}/o/{quote(name, safe='')}"
        while True:
            query = {"sourceGeneration": source.generation} | ({"rewriteToken": token} if token else {})
            answer = self._json(f"copying {source.name}", "POST", url, params=query)
            if answer.get("done"):
                return _object(answer["resource"])
            token = answer["rewriteToken"]

    def delete(self, name: str) -> None:
        """Delete an object if it is there."""
        try:
            self._json(f"deleting {name}", "DELETE", self._url("/storage/v1", name))
        except Missing:
            return


class _Status(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self.code = code
        self.text = text


class _Damaged(Exception):
    """What came is not what was sent."""


def _check(response: Any) -> None:
    if response.status_code >= 300:
        raise _Status(response.status_code, response.text[:300])


def _read_some(response: Any, out: memoryview) -> int:
    """Bytes of a response's body straight into `out`."""
    import requests
    import urllib3

    try:
        count: int = response.raw.readinto(out)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise requests.ConnectionError(str(error)) from error
    return count


def _object(item: Mapping[str, Any]) -> Object:
    crc32c = struct.unpack(">I", base64.b64decode(item["crc32c"]))[0]
    return Object(item["name"], int(item["size"]), str(item["generation"]), crc32c, item.get("updated", ""))


def encode_crc32c(value: int) -> str:
    """As Google writes it: base64 of four bytes, most significant first."""
    return base64.b64encode(struct.pack(">I", value)).decode()


def batches(objects: Sequence[Object], size: int = 32) -> Iterator[Sequence[Object]]:
    """`objects` in runs of `size`."""
    for at in range(0, len(objects), size):
        yield objects[at : at + size]
