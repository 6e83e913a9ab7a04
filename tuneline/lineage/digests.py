"""Digests of files and folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

#: The name of the sidecar: excluded from the digest that it holds.
SIDECAR = "lineage.json"


@dataclass(frozen=True)
class FileDigest:
    """One file: path relative to its folder with `/`, sha256 in 64 hex characters, size in bytes."""

    path: str
    sha256: str
    size: int


def content_digest(files: Iterable[FileDigest]) -> str:
    """sha256 over the sorted lines `"{sha256}  {path}\\n"`, 64 hex characters: equal content has equal digests wherever it lies."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
