"""The one way in which a checkpoint is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuneline.core.errors import CheckpointError


def refused(
    file: str | Path,
    reason: str,
    *,
    asked: str = "",
    found: str = "",
    choices: Sequence[str] = (),
    next_move: str = "",
) -> CheckpointError:
    """The error to raise: it names the file and the reason."""
    return CheckpointError(f"{file}: {reason}", asked=asked, found=found, choices=choices, next_move=next_move)
