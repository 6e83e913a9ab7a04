"""Which kind of checkpoint a folder holds, and where in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuneline.checkpoints.dcp import METADATA
from tuneline.checkpoints.refusal import refused

#: Where a DCP may lie below the folder that a person names, and who writes it there.
DCP_PLACES = {
    "": "a DCP folder itself",
    "model": "NeMo RL v2, given its weights/",
    "weights": "the trl engine's step_N; NeMo RL, given its policy/",
    "weights/model": "NeMo RL v2, given its policy/",
    "policy/weights": "NeMo RL v1, given its step_N",
    "policy/weights/model": "NeMo RL v2, given its step_N",
}
_INNER = ("model", "weights", "policy")


@dataclass(frozen=True)
class Layout:
    """A checkpoint that was found.

    Attributes:
        folder: The folder with `.metadata`.
        companions: Folders of the same checkpoint where its config and tokenizer may lie, nearest first.
    """

    folder: Path
    companions: tuple[Path, ...]


def detect(source: Path) -> Layout:
    """The checkpoint at or below `source`.

    Raises:
        CheckpointError: There is none, or more than one; it says what was looked for and what is there.
    """
    if not source.is_dir():
        raise refused(source, "is no folder", next_move="give the folder of one step, for example …/step_100")
    found = [place for place in DCP_PLACES if (source / place / METADATA).is_file()]
    if len(found) > 1:
        raise refused(
            source, "holds more than one checkpoint", choices=[str(source / place) for place in found], next_move="give one of them"
        )
    if not found:
        names = sorted(path.name for path in source.iterdir())
        raise refused(
            source,
            "holds no checkpoint that can be read",
            asked="; ".join(f"{source / place / METADATA} ({writer})" for place, writer in DCP_PLACES.items()),
            found=", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "an empty folder",
            next_move="give the folder of one finished step",
        )
    folder = source / found[0]
    return Layout(folder, _companions(folder.absolute()))


def _companions(folder: Path) -> tuple[Path, ...]:
    """The folder and those above it that belong to the same checkpoint, each followed by its tokenizer/."""
    climbed = [folder]
    while climbed[-1].name in _INNER:
        climbed.append(climbed[-1].parent)
    return tuple(path for place in climbed for path in (place, place / "tokenizer") if path.is_dir())
