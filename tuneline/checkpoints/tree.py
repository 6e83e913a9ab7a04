"""A folder to read from, wherever it is: on a disk or in a bucket. Paths are relative to it, with `/`; '' is the folder itself."""

from __future__ import annotations

import json
from typing import Any, Protocol

from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Blob

#: Largest file that is read whole: tokenizers and indexes of giant models.
MAX_SMALL = 256 << 20


class Tree(Protocol):
    """The folder."""

    @property
    def name(self) -> str:
        """What error messages call it: a path, or gs://bucket/prefix."""

    def files(self, under: str) -> dict[str, int]:
        """Sizes in bytes of the files directly in `under`, by name; empty if there is no such folder."""

    def folders(self, under: str) -> list[str]:
        """Names of the folders directly in `under`, sorted."""

    def open(self, relative: str) -> Blob:
        """A file; opened once. CheckpointError if it is not there or lies outside."""

    def close(self) -> None:
        """Close what was opened."""


def join(*parts: str) -> str:
    """Relative paths joined; empty ones do not count."""
    return "/".join(part for part in parts if part)


def at(tree: Tree, relative: str) -> str:
    """What error messages call the file or folder at `relative`."""
    return join(tree.name, relative)


def read_small(tree: Tree, relative: str, limit: int = MAX_SMALL) -> bytes:
    """All bytes of a file of at most `limit` bytes; CheckpointError if it is larger."""
    blob = tree.open(relative)
    if blob.size > limit:
        raise refused(blob.name, f"has {blob.size} bytes, at most {limit} expected")
    content = bytearray(blob.size)
    blob.read_into(0, memoryview(content))
    return bytes(content)


def read_json(tree: Tree, relative: str) -> dict[str, Any]:
    """A JSON object; CheckpointError if the file holds none."""
    return parse_json(read_small(tree, relative), at(tree, relative))


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """A JSON object; CheckpointError if `content` is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise refused(where, f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise refused(where, "is no JSON object")
    return value
