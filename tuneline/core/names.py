"""Names that derive from other names, so that every retry and the exit task find the same things."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_text(text: str) -> str:
    """The sha256 of `text` in UTF-8, 64 hex characters."""
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(project: str, region: str, job_name: str) -> str:
    """`tl` and 10 base32 characters (50 bits) of sha256(project/region/pipeline job name).

    Every resource name of a run derives from it, because an exit task cannot read other tasks' outputs.
    """
    digest = hashlib.sha256(f"{project}/{region}/{job_name}".encode()).digest()
    return "tl" + base64.b32encode(digest)[:10].decode().lower()


def attempt_name(run: str, attempt: int) -> str:
    """The job name of attempt `attempt` (from 1) of a run: `<run_id>-a<N>`."""
    return f"{run}-a{attempt}"
