"""The errors that Tuneline raises: each says what was asked, what was found, the choices and the next move."""

from __future__ import annotations

from collections.abc import Sequence


class TunelineError(Exception):
    """An error meant for a person.

    Args:
        message: What went wrong, in one line that stands by itself.
        asked: What the caller asked for.
        found: What was there instead.
        choices: What would have been valid.
        next_move: What the reader does now.
    """

    #: Stable code shown beside the message and explained in docs/runbook.md.
    code = "TL000"

    def __init__(
        self,
        message: str,
        *,
        asked: str = "",
        found: str = "",
        choices: Sequence[str] = (),
        next_move: str = "",
    ) -> None:
        self.message = message
        self.asked = asked
        self.found = found
        self.choices = tuple(choices)
        self.next_move = next_move
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        for label, text in (
            ("asked", self.asked),
            ("found", self.found),
            ("choices", ", ".join(self.choices)),
            ("next", self.next_move),
        ):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)


class SpecError(TunelineError):
    """Parameters that cannot work; `faults` holds every one of them, a line each."""

    code = "TL100"

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{count} parameter{'s' if count != 1 else ''} cannot be used; nothing was started"
        super().__init__(head, next_move="correct them and run again; `tuneline params` lists every parameter")

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}:", *(f"  - {fault}" for fault in self.faults)]
        return "\n".join([*lines, f"  next: {self.next_move}"])


class StoreError(TunelineError):
    """A store folder or object that is not as its layout says."""

    code = "TL200"


class StagingError(TunelineError):
    """A model, data set or code folder that cannot be staged."""

    code = "TL210"


class ClusterError(TunelineError):
    """A Ray cluster that does not come up or is lost."""

    code = "TL300"


class SlowNetwork(ClusterError):
    """GPUs that reach each other far more slowly than their machine can, or not at all."""

    code = "TL310"


class JobError(TunelineError):
    """A training job that ended badly."""

    code = "TL400"


class JobStalled(JobError):
    """No new training step within the stall limit."""

    code = "TL401"


class JobDeadline(JobError):
    """The training job ran longer than its deadline."""

    code = "TL402"


class JobGuarded(JobError):
    """A training job that was stopped because it learned nothing any more."""

    code = "TL403"


class CheckpointError(TunelineError):
    """A checkpoint that cannot be read, is not whole, or does not prove its own cover."""

    code = "TL500"


class LineageError(TunelineError):
    """Lineage that is missing, contradicts itself or does not match the bytes."""

    code = "TL600"


class GateError(TunelineError):
    """A model that its evaluation does not let through."""

    code = "TL700"
