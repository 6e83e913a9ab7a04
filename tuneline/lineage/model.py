"""The lineage graph: artifacts, the executions that read and wrote them, and the port of the stores that hold it.

It has the shape of Vertex ML Metadata (artifact, execution, event), so that one audit serves every store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

from tuneline.core.errors import LineageError
from tuneline.core.names import sha256_text

Kind = Literal["base", "dataset", "code", "checkpoint", "hf", "registered", "metrics", "report"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Direction = Literal["input", "output"]


class State(StrEnum):
    """Where an execution stands; CACHED made nothing new, it took over what an earlier one had made."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CACHED = "CACHED"


@dataclass(frozen=True)
class Artifact:
    """Something that was read or written.

    Attributes:
        kind: One of KINDS.
        uri: Folder, file or bucket address, without a trailing slash.
        digest: Content digest of a folder, sha256 of a file, content digest of a registered model's weights; '' where it was not taken.
        metadata: Flat text, keys `lineage_*`.
    """

    kind: str
    uri: str
    digest: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LineageError("an artifact of an unknown kind", asked=self.kind, choices=KINDS)
        if not self.uri:
            raise LineageError(f"a {self.kind} artifact without a uri", next_move="give the folder or address that it lies at")
        if self.digest and not is_sha256(self.digest):
            raise LineageError(
                f"the digest of {self.kind} {self.uri} is no sha256",
                found=self.digest,
                next_move="give 64 lower-case hex characters, or ''",
            )
        object.__setattr__(self, "uri", normalize_uri(self.uri))

    @property
    def id(self) -> str:
        """32 hex characters from kind, uri and digest: a consumer's input meets the producer's output without asking."""
        return sha256_text("\n".join((self.kind, self.uri, self.digest)))[:32]

    @property
    def name(self) -> str:
        """Kind and last segment of the uri, for a person."""
        return f"{self.kind} {self.uri.rsplit('/', 1)[-1]}"


@dataclass(frozen=True)
class Execution:
    """One attempt of one task of one run.

    Attributes:
        started, finished: Seconds since the epoch; None while it runs.
        parameters: What the task was given.
        properties: What it tells of itself: image, hardware, why it ended.
    """

    run_id: str
    task: str
    attempt: int
    state: State = State.RUNNING
    started: float = 0.0
    finished: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return execution_id(self.run_id, self.task, self.attempt)


def execution_id(run_id: str, task: str, attempt: int) -> str:
    """`<run_id>/<task>/<attempt>`."""
    return f"{run_id}/{task}/{attempt}"


@dataclass(frozen=True)
class Event:
    """An edge: the execution read (`input`) or wrote (`output`) the artifact under `name`."""

    execution: str
    artifact: str
    direction: Direction
    name: str


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model: its number from 1, and the artifact that holds its weights."""

    name: str
    version: int
    artifact: Artifact
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return registered_uri(self.name, self.version)


def registered_uri(name: str, version: int) -> str:
    """The uri of a registered model's own artifact: `tuneline:<name>@<version>`."""
    return f"tuneline:{name}@{version}"


@dataclass(frozen=True)
class Graph:
    """A part of the lineage: nodes by id, and every event between two nodes that it holds."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    executions: Mapping[str, Execution] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @cached_property
    def _by_execution(self) -> Mapping[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = {}
        for event in self.events:
            found.setdefault((event.execution, event.direction), []).append(event)
        return found

    @cached_property
    def _by_artifact(self) -> Mapping[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = {}
        for event in self.events:
            found.setdefault((event.artifact, event.direction), []).append(event)
        return found

    def producers(self, artifact: str) -> list[Execution]:
        """The executions that wrote an artifact: the last that is COMPLETE first, those that were CACHED after all others."""
        found = {event.execution for event in self._by_artifact.get((artifact, "output"), ())}
        known = [self.executions[key] for key in found if key in self.executions]
        return sorted(known, key=lambda item: (item.state is State.CACHED, item.state is not State.COMPLETE, -item.started, item.id))

    def consumers(self, artifact: str) -> list[Execution]:
        """The executions that read an artifact."""
        found = {event.execution for event in self._by_artifact.get((artifact, "input"), ())}
        return [self.executions[key] for key in sorted(found) if key in self.executions]

    def inputs(self, execution: str) -> list[Artifact]:
        """What an execution read, by name of the input."""
        return self._ends(execution, "input")

    def outputs(self, execution: str) -> list[Artifact]:
        """What an execution wrote, by name of the output."""
        return self._ends(execution, "output")

    def of_kind(self, kind: str) -> list[Artifact]:
        """The artifacts of a kind, oldest first."""
        return [item for item in self.artifacts.values() if item.kind == kind]

    def _ends(self, execution: str, direction: Direction) -> list[Artifact]:
        found = sorted(self._by_execution.get((execution, direction), ()), key=lambda event: (event.name, event.artifact))
        return [self.artifacts[event.artifact] for event in found if event.artifact in self.artifacts]


class LineageStore(Protocol):
    """Holds the graph and the registry of models. Every method may be called by several processes at once.

    Raises:
        LineageError: From every method: the store cannot be reached or is not as it must be.
    """

    #: Folder or bucket whose layout `config.store` tells, '' where there is none: relocated artifacts are looked for below it.
    root: str

    def put_artifact(self, artifact: Artifact) -> None:
        """Add an artifact; where it is known, keys of its metadata that the store lacks are added and none is changed."""

    def put_sidecar(self, artifact: Artifact, sha256: str) -> None:
        """Add an artifact, and the sha256 of a sidecar to those that its folder may hold.

        Only for the execution that writes the sidecar, before it is published: never the sha256 of one that was found.
        """

    def begin(self, execution: Execution) -> Execution:
        """Add an execution that runs, under the first free attempt from its own on.

        Earlier attempts of the same task and run that still count as RUNNING are marked FAILED: a task has one attempt at a time.
        """

    def end(self, execution: str, state: State, finished: float, properties: Mapping[str, str]) -> None:
        """Record how an execution ended; properties are added to those it has."""

    def put_event(self, event: Event) -> None:
        """Add an edge between an execution and an artifact that the store holds; the same edge twice is one."""

    def artifact(self, artifact_id: str) -> Artifact | None:
        """The artifact of this id."""

    def execution(self, execution_id: str) -> Execution | None:
        """The execution of this id."""

    def find(self, *, uri: str = "", digest: str = "", kind: str = "") -> list[Artifact]:
        """Every artifact that agrees with all of what is given, oldest first. Trailing slashes of the uri do not matter."""

    def uris(self) -> list[str]:
        """Every uri that is known, to suggest from."""

    def upstream(self, artifact_ids: Iterable[str]) -> Graph:
        """The artifacts and everything that they were made from.

        Where no execution is recorded that wrote an artifact, the producers of equal artifacts of the same kind count: of the same digest,
        or of the same uri where one of the two has no digest.
        """

    def downstream(self, artifact_ids: Iterable[str]) -> Graph:
        """The artifacts, all their copies, and everything that was made from them."""

    def register(self, name: str, artifact: Artifact, metadata: Mapping[str, str], *, at: float) -> ModelVersion:
        """Make the artifact the next version of a model; weights of a digest that the model has already are that version again."""

    def versions(self, name: str = "") -> list[ModelVersion]:
        """Every version of a model, or of all models, oldest first."""


def is_sha256(text: str) -> bool:
    """Whether `text` is 64 lower-case hex characters."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def normalize_uri(uri: str) -> str:
    """A uri as the store compares it: without trailing slashes and without `file://`."""
    plain = uri.removeprefix("file://")
    return plain.rstrip("/") or "/"
