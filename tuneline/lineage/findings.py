"""What an audit says: files, artifacts and findings, each a typed row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tuneline.lineage.model import Artifact, Graph
from tuneline.lineage.sidecar import Statement


class Severity(StrEnum):
    """How much a finding weighs, heaviest first."""

    #: Bytes or records contradict each other: exit 1.
    MISMATCH = "MISMATCH"
    #: Something that is needed to know is not there: exit 2.
    INCOMPLETE = "INCOMPLETE"
    WARNING = "WARNING"
    INFO = "INFO"


class FileState(StrEnum):
    """A file against what was recorded of it."""

    SAME = "SAME"
    CHANGED = "CHANGED"
    MISSING = "MISSING"
    EXTRA = "EXTRA"
    #: Its name and size agree; its content was not compared.
    UNVERIFIED = "UNVERIFIED"


class NodeState(StrEnum):
    """An artifact against what was recorded of it."""

    VERIFIED = "VERIFIED"
    MISMATCH = "MISMATCH"
    #: Its bytes are not where they were, nor below the store's root.
    MISSING = "MISSING"
    UNVERIFIED = "UNVERIFIED"
    #: There is nothing to verify: a run without user code.
    NOTHING = "NOTHING"


@dataclass(frozen=True)
class Finding:
    """One row: what is wrong with which subject, and what the reader does now."""

    severity: Severity
    subject: str
    what: str
    next_move: str = ""


@dataclass(frozen=True)
class FileRow:
    """One file; `expected` and `found` are digests or sizes with their unit."""

    path: str
    state: FileState
    expected: str = ""
    found: str = ""
    size: int = 0


@dataclass(frozen=True)
class NodeCheck:
    """An artifact and its bytes.

    Attributes:
        location: The folder or file that was read, '' where there is none on this computer.
        statement: Its sidecar, where there is a sound one.
    """

    artifact: Artifact
    state: NodeState
    location: str = ""
    files: tuple[FileRow, ...] = ()
    statement: Statement | None = None


@dataclass(frozen=True)
class AuditResult:
    """The answer to `audit(target)`.

    Attributes:
        at: When, seconds since the epoch.
        full: Whether contents were compared by sha256.
        store: The store that was asked, '' for none.
        subject: Id of the artifact that the target is, '' where it is not known or not clear.
        candidates: What the target may mean, where that is more than one thing.
        nodes: The subject and everything that it was made from, by artifact id.
    """

    target: str
    at: float
    full: bool
    store: str
    subject: str = ""
    candidates: tuple[Artifact, ...] = ()
    nodes: Mapping[str, NodeCheck] = field(default_factory=dict)
    graph: Graph = field(default_factory=Graph)
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> str:
        """VERIFIED, MISMATCH or INCOMPLETE; a mismatch wins, and nothing is verified whose bytes were not."""
        found = {item.severity for item in self.findings}
        subject = self.nodes.get(self.subject)
        if Severity.MISMATCH in found:
            return "MISMATCH"
        return "VERIFIED" if Severity.INCOMPLETE not in found and subject and subject.state is NodeState.VERIFIED else "INCOMPLETE"

    @property
    def exit_code(self) -> int:
        """0 verified, 1 mismatch, 2 incomplete."""
        return {"VERIFIED": 0, "MISMATCH": 1, "INCOMPLETE": 2}[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "target": self.target,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "at": self.at,
            "full": self.full,
            "store": self.store,
            "subject": self.subject,
            "candidates": [_artifact_dict(item) for item in self.candidates],
            "findings": [asdict(item) for item in self.findings],
            "artifacts": [
                {
                    **_artifact_dict(node.artifact),
                    "state": node.state,
                    "location": node.location,
                    "files": [asdict(row) for row in node.files],
                    "details": dict(node.statement.details) if node.statement else {},
                    "parameters": dict(node.statement.parameters) if node.statement else {},
                }
                for node in self.nodes.values()
            ],
            "executions": [{"id": item.id, **asdict(item)} for item in self.graph.executions.values()],
            "events": [asdict(item) for item in self.graph.events],
        }


def _artifact_dict(artifact: Artifact) -> dict[str, Any]:
    return {"id": artifact.id, **asdict(artifact)}
