"""What every task does around its flow: record itself, its inputs and outputs; tell of its failure; find its run."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core import log, names
from tuneline.core.clock import SYSTEM, Clock, utc
from tuneline.core.errors import LineageError, TunelineError
from tuneline.gcp.documents import Documents, open_documents
from tuneline.lineage import model, sidecar
from tuneline.lineage.digests import digest_file
from tuneline.lineage.metadata import lineage_metadata, sidecars
from tuneline.lineage.record import TaskRecord, record_cached, start_task
from tuneline.lineage.sqlite import SqliteStore
from tuneline.tasks.gke import Site

logger = log.get_logger("tasks")


class Artifact(Protocol):
    """The part of a pipeline artifact that tasks use."""

    uri: str
    path: str
    metadata: dict[str, Any]


#: What an output artifact says of itself where a task had nothing to make: it is no part of the lineage.
NOTHING = {"lineage_kind": "none"}


@dataclass(frozen=True)
class Taken:
    """An input artifact: where it lies and the digest that its producer gave it."""

    uri: str
    digest: str
    metadata: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return Path(self.uri)


@dataclass
class Task:
    """One running task.

    Attributes:
        run_id: '' for a cached task that runs outside any known run.
        documents: The small documents of the store.
        site: The run's place in Google Cloud; None for a run on this computer.
    """

    name: str
    store: Store
    run_id: str
    record: TaskRecord
    lineage: SqliteStore
    documents: Documents
    site: Site | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, artifact: Artifact) -> Taken:
        """Record an input artifact and return what it says of itself.

        Raises:
            LineageError: If it carries no lineage, so nobody could verify it.
        """
        metadata = {key: str(value) for key, value in artifact.metadata.items() if key.startswith("lineage_")}
        kind = metadata.get("lineage_kind", "")
        if metadata == NOTHING:
            return Taken("", "", metadata)
        if not kind:
            raise LineageError(
                f"the input {name} of {self.name} carries no lineage",
                asked=f"an artifact with lineage_* metadata at {artifact.uri!r}",
                found=f"metadata keys {sorted(artifact.metadata) or 'none'}",
                next_move="give an artifact that a Tuneline task made, or run its staging task again with a new ops_rerun_token",
            )
        known = self.record.input(name, artifact.uri, kind=kind, digest=metadata.get("lineage_digest", ""), metadata=metadata)
        self._tell_cached(name, known)
        return Taken(artifact.uri, metadata.get("lineage_digest", ""), metadata)

    def _tell_cached(self, name: str, artifact: model.Artifact) -> None:
        """A task that the cache answered runs no code, so its consumer records it."""
        producer = artifact.metadata.get("lineage_task", "")
        if self.run_id and producer and self.lineage.execution(model.execution_id(self.run_id, producer, 1)) is None:
            record_cached(self.lineage, run_id=self.run_id, task=producer, outputs={name: artifact})
            notes = {"uri": artifact.uri, "cached from run": artifact.metadata.get("lineage_run", "")}
            log.event("task", task=producer, state="cached", notes=notes)

    def emit(self, name: str, artifact: Artifact, uri: str, *, kind: str, digest: str, **keys: Any) -> None:
        """Fill an output artifact and record it. `keys` are further keys of `lineage_metadata`, or other values for its own.

        Its sidecar's sha256 is told only if the store has it from the task that wrote it (`TaskRecord.seal`): else whatever lies in a
        folder that was found would become what was recorded.
        """
        execution = self.record.execution
        known = {"run_id": self.run_id, "task": self.name, "attempt": execution.attempt, "parameters": execution.parameters}
        described = sidecar.find(Path(uri)) if digest else None
        if described:
            known["manifest"] = str(described)
            recorded = self.lineage.artifact(model.Artifact(kind, uri, digest).id)
            if recorded and (sha256 := digest_file(described).sha256) in sidecars(recorded.metadata):
                known["manifest_sha256"] = sha256
        metadata = lineage_metadata(kind=kind, digest=digest, **{**known, **keys})
        artifact.uri = uri
        artifact.metadata.update(metadata)
        self.record.output(name, uri, kind=kind, digest=digest, metadata=metadata)


def local_run_id(job_name: str) -> str:
    """The id of a run on this computer."""
    return names.run_id("local", "local", job_name)


def run_id_of(platform: str, project: str, region: str, job_name: str) -> str:
    """The id of a run, the same in every task and every retry."""
    return local_run_id(job_name) if platform == "local" else names.run_id(project, region, job_name)


def current_run() -> str:
    """The run that this computer is at, for a cached task, whose parameters must not name it; '' elsewhere."""
    events = os.environ.get(log.EVENTS_VARIABLE)
    path = Path(events).with_name("run_id") if events else None
    return path.read_text().strip() if path and path.exists() else ""


def announce_run(run_id: str) -> None:
    """Tell the program that watches, and the cached tasks to come, which run this is."""
    events = os.environ.get(log.EVENTS_VARIABLE)
    if events:
        Path(events).with_name("run_id").write_text(run_id)
    log.event("run", run_id=run_id)


@contextlib.contextmanager
def running(
    name: str, *, root: str, run_id: str, parameters: Mapping[str, Any], site: Site | None = None, clock: Clock = SYSTEM
) -> Iterator[Task]:
    """Run a task's flow inside its record. A failure is told in `runs/<run_id>/errors/<task>.json`, then raised.

    Args:
        site: Where the run is in Google Cloud; without it a bucket is read with the caller's own credentials.
    """
    log.configure()
    store, documents = Store(root), site.documents if site else open_documents(root)
    with _lineage(store) as database:
        bucket, telling = root.startswith("gs://"), store.task(run_id, name)
        attempt = 1 + (_attempts(documents, telling) if bucket and run_id else 0)
        properties = {"process": str(os.getpid())}
        record = start_task(database, run_id=run_id, task=name, attempt=attempt, parameters=parameters, properties=properties, clock=clock)
        attempt = record.execution.attempt

        def tell(path: str, value: Mapping[str, Any]) -> None:
            if run_id:
                # What cannot be told must not hide what is to be told: before provision_storage there may be no bucket.
                with _told(path):
                    documents.write(path, {"task": name, "attempt": attempt, **value, "at": utc(clock.now())})

        if bucket:
            tell(telling, {"state": "RUNNING"})
        log.event("task", task=name, state="started", attempt=attempt)
        task = Task(name, store, run_id, record, database, documents, site)
        try:
            yield task
        except BaseException as error:
            text = str(error) if isinstance(error, TunelineError) else "".join(traceback.format_exception_only(error)).strip()
            logger.error("%s failed: %s", name, text)
            # On a full disk none of these may succeed, and none may hide the error that the task died of.
            tell(store.error(run_id, name), {"error": text})
            if bucket:
                tell(telling, {"state": "FAILED"})
            with _told("the event"):
                log.event("task", task=name, state="failed", attempt=attempt, error=text)
            with _told("the lineage"):
                record.finish("FAILED", {"error": text[:2000]})
            raise
        record.finish("COMPLETE", task.notes)
        if run_id:
            with _told(store.error(run_id, name)):
                documents.delete(store.error(run_id, name))
        if bucket:
            tell(telling, {"state": "COMPLETE", "notes": task.notes})
        log.event("task", task=name, state="finished", attempt=attempt, notes=task.notes)


@contextlib.contextmanager
def _lineage(store: Store) -> Iterator[SqliteStore]:
    """The lineage store: of a folder its own; of a bucket one that ends with the task (docs/decisions/0009)."""
    if not store.root.startswith("gs://"):
        yield SqliteStore(Path(store.lineage_db()))
        return
    with tempfile.TemporaryDirectory(prefix="tuneline-lineage-") as folder:
        yield SqliteStore(Path(folder) / "lineage.sqlite")


def _attempts(documents: Documents, path: str) -> int:
    """How many attempts of a task there were; none where that cannot be read."""
    try:
        return int((documents.read(path) or {"attempt": 0})["attempt"])
    except TunelineError as error:
        logger.info("%s cannot be read (%s)", path, error.code)
        return 0


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, TunelineError) as error:
        logger.warning("%s cannot be written: %s", what, error)


@contextlib.contextmanager
def running_spec(name: str, spec_json: str, job_name: str, *, clock: Clock = SYSTEM, **parameters: Any) -> Iterator[tuple[Task, RunSpec]]:
    """`running` for a task that takes the whole spec."""
    spec = RunSpec.from_json(spec_json)
    run_id = run_id_of(spec.infra_platform, spec.infra_project, spec.infra_region, job_name)
    site = Site(spec, run_id, clock) if spec.infra_platform == "gke" else None
    given = {**parameters, "spec_sha256": names.sha256_text(spec.to_json())}
    with running(name, root=spec.output_root, run_id=run_id, parameters=given, site=site, clock=clock) as task:
        yield task, spec
