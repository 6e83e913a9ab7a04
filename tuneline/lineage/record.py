"""What tasks use to record what they read, wrote and were given.

with start_task(store, run_id=run, task="convert", parameters=spec.subset("output_")) as record:
    record.input("checkpoint", uri, kind="checkpoint", digest=digest)
    statement = record.statement(kind="hf", uri=final, files=digest_folder(folder), dependencies=[...], details={"step": "100"})
    record.seal(statement)
    sidecar.write(folder, statement)
    record.output("model", final, kind="hf", digest=statement.digest, metadata=statement.metadata(image=image, code=code))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tuneline.core.clock import SYSTEM, Clock, utc
from tuneline.core.errors import LineageError
from tuneline.lineage.digests import FileDigest, QuickFile
from tuneline.lineage.metadata import lineage_metadata
from tuneline.lineage.model import Artifact, Direction, Event, Execution, LineageStore, State
from tuneline.lineage.sidecar import Dependency, Statement, build_statement


class TaskRecord:
    """One attempt of a task, while it runs. As a context manager it ends COMPLETE, or FAILED with the error that left the block."""

    def __init__(self, store: LineageStore, execution: Execution, clock: Clock) -> None:
        self.store = store
        self.execution = execution
        self._clock = clock
        self._ended = False

    def input(self, name: str, uri: str, *, kind: str, digest: str = "", metadata: Mapping[str, str] | None = None) -> Artifact:
        """Record that the task reads an artifact; it meets the producer's output of the same kind, uri and digest."""
        return self._event("input", name, Artifact(kind, uri, digest, metadata or {}))

    def output(self, name: str, uri: str, *, kind: str, digest: str = "", metadata: Mapping[str, str] | None = None) -> Artifact:
        """Record that the task wrote an artifact; without `metadata` it gets the keys that the execution knows."""
        if metadata is None:
            metadata = lineage_metadata(
                kind=kind,
                digest=digest,
                run_id=self.execution.run_id,
                task=self.execution.task,
                attempt=self.execution.attempt,
                parameters=self.execution.parameters,
            )
        return self._event("output", name, Artifact(kind, uri, digest, metadata))

    def _event(self, direction: Direction, name: str, artifact: Artifact) -> Artifact:
        self.store.put_artifact(artifact)
        self.store.put_event(Event(self.execution.id, artifact.id, direction, name))
        return artifact

    def statement(
        self,
        *,
        kind: str,
        uri: str,
        files: Iterable[FileDigest],
        quick: Iterable[QuickFile] = (),
        dependencies: Sequence[Dependency] = (),
        parameters: Mapping[str, Any] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> Statement:
        """The sidecar of a folder that this task wrote; see `sidecar.build_statement`. `parameters` default to the task's own."""
        return build_statement(
            kind=kind,
            uri=uri,
            files=files,
            quick=quick,
            dependencies=dependencies,
            parameters=self.execution.parameters if parameters is None else parameters,
            run_id=self.execution.run_id,
            task=self.execution.task,
            attempt=self.execution.attempt,
            started=utc(self.execution.started),
            finished=utc(self._clock.now()),
            details=details or {},
        )

    def seal(self, statement: Statement) -> None:
        """Record a sidecar that this task is about to write into a folder of its own making, before anyone can see the folder there.

        A task that is killed after it has published the folder then leaves one that can be verified.
        """
        artifact = Artifact(statement.kind, statement.uri, statement.digest)
        self.store.put_sidecar(artifact, hashlib.sha256(statement.to_json()).hexdigest())

    def finish(self, state: State | str = State.COMPLETE, properties: Mapping[str, str] | None = None) -> None:
        """Record how the task ended: COMPLETE, FAILED or CACHED.

        Raises:
            LineageError: It ended before, or `state` is no end.
        """
        if self._ended or state not in (State.COMPLETE, State.FAILED, State.CACHED):
            raise LineageError(
                f"{self.execution.id} cannot end {'twice' if self._ended else 'like that'}",
                asked=str(state),
                choices=(State.COMPLETE, State.FAILED, State.CACHED),
            )
        self.store.end(self.execution.id, State(state), self._clock.now(), properties or {})
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self.finish(State.COMPLETE)
        else:
            self.finish(State.FAILED, {"error": f"{type(error).__name__}: {error}"[:2000]})


def start_task(
    store: LineageStore,
    *,
    run_id: str,
    task: str,
    attempt: int = 1,
    parameters: Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM,
) -> TaskRecord:
    """Record that a task begins.

    Args:
        attempt: Its number where that is known; the first free number from it on is taken and stands in `record.execution.attempt`.
        parameters: What the task was given.
        properties: What it tells of itself: image, hardware, framework versions; text.
    """
    begun = store.begin(
        Execution(run_id, task, max(1, attempt), started=clock.now(), parameters=dict(parameters or {}), properties=dict(properties or {}))
    )
    return TaskRecord(store, begun, clock)


def record_cached(
    store: LineageStore,
    *,
    run_id: str,
    task: str,
    outputs: Mapping[str, Artifact],
    parameters: Mapping[str, Any] | None = None,
    clock: Clock = SYSTEM,
) -> Execution:
    """Record a task whose outputs came out of a cache: no code of it ran, so its inputs are those of the executions that made them.

    Args:
        outputs: Artifacts by name of the output, as they were recorded when they were made.
    """
    record = start_task(store, run_id=run_id, task=task, parameters=parameters, clock=clock)
    for name, artifact in outputs.items():
        graph = store.upstream([artifact.id])
        for producer in graph.producers(artifact.id)[:1]:
            for event in graph.events:
                if event.execution == producer.id and event.direction == "input":
                    store.put_event(Event(record.execution.id, event.artifact, "input", event.name))
        record.output(name, artifact.uri, kind=artifact.kind, digest=artifact.digest, metadata=artifact.metadata)
    record.finish(State.CACHED)
    return record.execution
