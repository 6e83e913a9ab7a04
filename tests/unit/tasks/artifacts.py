"""A pipeline artifact as tasks see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeArtifact:
    """What kfp hands over: a place to write, and what the producer said."""

    path: str = ""
    uri: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
