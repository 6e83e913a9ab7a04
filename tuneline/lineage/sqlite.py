"""The local lineage store: one SQLite file that several runs may write at once.

A connection lives for one operation, so that a store may cross a fork or be used by threads. The rollback journal (not WAL) keeps the
store one file between writes, readable from a read-only folder. Writers take the lock at once (BEGIN IMMEDIATE) and wait for each other.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuneline.core.errors import LineageError
from tuneline.core.names import canonical_json
from tuneline.lineage.metadata import check_metadata, with_sidecar
from tuneline.lineage.model import Artifact, Event, Execution, Graph, ModelVersion, State, normalize_uri

#: `PRAGMA user_version` of the schema below.
SCHEMA_VERSION = 1

#: Seconds that an operation waits for another process's write.
BUSY_SECONDS = 60.0

_SCHEMA = """
CREATE TABLE artifact (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, uri TEXT NOT NULL, digest TEXT NOT NULL, metadata TEXT NOT NULL);
CREATE INDEX artifact_uri ON artifact (uri);
CREATE INDEX artifact_digest ON artifact (digest) WHERE digest <> '';
CREATE TABLE execution (
  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, task TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
  started REAL NOT NULL, finished REAL, parameters TEXT NOT NULL, properties TEXT NOT NULL, UNIQUE (run_id, task, attempt));
CREATE TABLE event (
  execution INTEGER NOT NULL REFERENCES execution, artifact INTEGER NOT NULL REFERENCES artifact,
  direction TEXT NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY (execution, direction, name, artifact)) WITHOUT ROWID;
CREATE INDEX event_artifact ON event (artifact, direction);
CREATE TABLE model_version (
  name TEXT NOT NULL, version INTEGER NOT NULL, artifact INTEGER NOT NULL REFERENCES artifact, digest TEXT NOT NULL, metadata TEXT NOT NULL,
  created REAL NOT NULL, PRIMARY KEY (name, version), UNIQUE (name, digest));
"""

# `far` and `near` are output and input going up, input and output going down. Going up, equal artifacts stand in for one that
# nobody is known to have written; going down, every copy counts.
_CLOSURE = """
WITH RECURSIVE reached (artifact) AS (
  SELECT key FROM artifact WHERE id IN (SELECT value FROM json_each(:ids))
  UNION
  SELECT b.artifact FROM reached
    JOIN event a ON a.artifact = reached.artifact AND a.direction = :far
    JOIN event b ON b.execution = a.execution AND b.direction = :near
  UNION
  SELECT twin.key FROM reached JOIN artifact one ON one.key = reached.artifact
    JOIN artifact twin ON twin.digest = one.digest AND twin.digest <> '' AND twin.kind = one.kind
    WHERE :copies OR NOT EXISTS (SELECT 1 FROM event WHERE event.artifact = one.key AND direction = 'output')
  UNION
  SELECT twin.key FROM reached JOIN artifact one ON one.key = reached.artifact
    JOIN artifact twin ON twin.uri = one.uri AND twin.kind = one.kind AND (twin.digest = '' OR one.digest = '')
    WHERE :copies OR NOT EXISTS (SELECT 1 FROM event WHERE event.artifact = one.key AND direction = 'output')
)
"""


class SqliteStore:
    """`LineageStore` in one file; made with its folder where it does not exist.

    Args:
        path: The file: `config.store.Store.lineage_db`.
        read_only: Never write; the file must exist.

    Raises:
        LineageError: From every method: no lineage store, one of a newer version, damaged, or locked for longer than BUSY_SECONDS.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self.root = str(self.path.parent.parent)
        if read_only and not self.path.is_file():
            raise LineageError("no lineage store", asked=str(self.path), next_move="give the folder that holds lineage/lineage.sqlite")
        if not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open(write=not read_only):
            pass

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection inside one transaction."""
        if write and self.read_only:
            raise LineageError("the lineage store was opened for reading only", asked=str(self.path))
        # "rw" falls back to reading where writing is forbidden, and can still roll back what a killed writer left.
        mode = "rw" if self.read_only else "rwc"
        try:
            connection = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                self._check_version(connection, write)
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise LineageError(
                f"the lineage store cannot be used: {error}",
                asked=str(self.path),
                next_move="check the file and its folder; restore it from a copy",
            ) from error

    def _check_version(self, connection: sqlite3.Connection, write: bool) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version or tables or not write:
            raise LineageError(
                "not a lineage store of this version of Tuneline",
                asked=str(self.path),
                found=f"schema version {version}" if version or not tables else "another program's database",
                choices=(str(SCHEMA_VERSION),),
                next_move="use the version of Tuneline that wrote it" if version else "check the path",
            )
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def put_artifact(self, artifact: Artifact) -> None:
        check_metadata(artifact.metadata)
        with self._open(write=True) as connection:
            self._put_artifact(connection, artifact)

    def put_sidecar(self, artifact: Artifact, sha256: str) -> None:
        check_metadata(artifact.metadata)
        with self._open(write=True) as connection:
            key = self._put_artifact(connection, artifact)
            known = json.loads(connection.execute("SELECT metadata FROM artifact WHERE key = ?", (key,)).fetchone()["metadata"])
            connection.execute("UPDATE artifact SET metadata = ? WHERE key = ?", (canonical_json(with_sidecar(known, sha256)), key))

    def _put_artifact(self, connection: sqlite3.Connection, artifact: Artifact) -> int:
        row = connection.execute("SELECT key, metadata FROM artifact WHERE id = ?", (artifact.id,)).fetchone()
        if row is None:
            values = (artifact.id, artifact.kind, artifact.uri, artifact.digest, canonical_json(dict(artifact.metadata)))
            cursor = connection.execute("INSERT INTO artifact (id, kind, uri, digest, metadata) VALUES (?, ?, ?, ?, ?)", values)
            return int(cursor.lastrowid or 0)
        known = json.loads(row["metadata"])
        merged = {**artifact.metadata, **known}
        if merged != known:
            connection.execute("UPDATE artifact SET metadata = ? WHERE key = ?", (canonical_json(merged), row["key"]))
        return int(row["key"])

    def begin(self, execution: Execution) -> Execution:
        of_task = (execution.run_id, execution.task)
        with self._open(write=True) as connection:
            taken = connection.execute("SELECT max(attempt) FROM execution WHERE run_id = ? AND task = ?", of_task).fetchone()[0]
            begun = replace(execution, attempt=max(execution.attempt, (taken or 0) + 1), state=State.RUNNING, finished=None)
            connection.execute(
                "UPDATE execution SET state = 'FAILED', properties = json_set(properties, '$.ended_by', ?)"
                " WHERE run_id = ? AND task = ? AND state = 'RUNNING'",
                (f"attempt {begun.attempt}", *of_task),
            )
            connection.execute(
                "INSERT INTO execution (id, run_id, task, attempt, state, started, finished, parameters, properties)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (begun.id, *of_task, begun.attempt, begun.state, begun.started, None, _json(begun.parameters), _json(begun.properties)),
            )
        return begun

    def end(self, execution: str, state: State, finished: float, properties: Mapping[str, str]) -> None:
        with self._open(write=True) as connection:
            changed = connection.execute(
                "UPDATE execution SET state = ?, finished = ?, properties = json_patch(properties, ?) WHERE id = ?",
                (state, finished, _json(properties), execution),
            )
            if changed.rowcount != 1:
                raise LineageError("an execution that never began cannot end", asked=execution, next_move="begin it first")

    def put_event(self, event: Event) -> None:
        with self._open(write=True) as connection:
            added = connection.execute(
                "INSERT INTO event (execution, artifact, direction, name) SELECT e.key, a.key, ?, ? FROM execution e, artifact a"
                " WHERE e.id = ? AND a.id = ? ON CONFLICT DO NOTHING RETURNING 1",
                (event.direction, event.name, event.execution, event.artifact),
            ).fetchone()
            known = "SELECT count(*) FROM (SELECT 1 FROM execution WHERE id = ? UNION ALL SELECT 1 FROM artifact WHERE id = ?)"
            if added is None and connection.execute(known, (event.execution, event.artifact)).fetchone()[0] != 2:
                raise LineageError(
                    "an event between things that the store does not hold", asked=f"{event.execution} {event.direction} {event.artifact}"
                )

    def artifact(self, artifact_id: str) -> Artifact | None:
        with self._open() as connection:
            row = connection.execute("SELECT * FROM artifact WHERE id = ?", (artifact_id,)).fetchone()
        return _artifact(row) if row else None

    def execution(self, execution_id: str) -> Execution | None:
        with self._open() as connection:
            row = connection.execute("SELECT * FROM execution WHERE id = ?", (execution_id,)).fetchone()
        return _execution(row) if row else None

    def find(self, *, uri: str = "", digest: str = "", kind: str = "") -> list[Artifact]:
        wanted = {"uri": normalize_uri(uri) if uri else "", "digest": digest, "kind": kind}
        given = {column: value for column, value in wanted.items() if value}
        where = " AND ".join(f"{column} = :{column}" for column in given) or "1"
        with self._open() as connection:
            return [_artifact(row) for row in connection.execute(f"SELECT * FROM artifact WHERE {where} ORDER BY key", given)]

    def uris(self) -> list[str]:
        with self._open() as connection:
            return [row["uri"] for row in connection.execute("SELECT DISTINCT uri FROM artifact ORDER BY uri")]

    def upstream(self, artifact_ids: Iterable[str]) -> Graph:
        return self._closure(artifact_ids, far="output", near="input", copies=False)

    def downstream(self, artifact_ids: Iterable[str]) -> Graph:
        return self._closure(artifact_ids, far="input", near="output", copies=True)

    def _closure(self, artifact_ids: Iterable[str], *, far: str, near: str, copies: bool) -> Graph:
        values = {"ids": json.dumps(list(artifact_ids)), "far": far, "near": near, "copies": copies}
        with self._open() as connection:
            connection.execute("CREATE TEMP TABLE node (artifact INTEGER PRIMARY KEY)")
            connection.execute(f"INSERT INTO node {_CLOSURE} SELECT artifact FROM reached", values)
            connection.execute("CREATE TEMP TABLE done (execution INTEGER PRIMARY KEY)")
            connection.execute(
                "INSERT INTO done SELECT DISTINCT execution FROM event JOIN node USING (artifact) WHERE direction = :far", values
            )
            artifacts = [
                _artifact(row) for row in connection.execute("SELECT a.* FROM node JOIN artifact a ON a.key = node.artifact ORDER BY a.key")
            ]
            executions = [
                _execution(row)
                for row in connection.execute("SELECT e.* FROM done JOIN execution e ON e.key = done.execution ORDER BY e.key")
            ]
            events = connection.execute(
                "SELECT e.id AS execution, a.id AS artifact, v.direction, v.name FROM done JOIN event v ON v.execution = done.execution"
                " JOIN node ON node.artifact = v.artifact JOIN execution e ON e.key = v.execution JOIN artifact a ON a.key = v.artifact"
                " ORDER BY e.key, v.direction, v.name, a.key"
            )
            edges = tuple(Event(*row) for row in events)
        return Graph({item.id: item for item in artifacts}, {item.id: item for item in executions}, edges)

    def register(self, name: str, artifact: Artifact, metadata: Mapping[str, str], *, at: float) -> ModelVersion:
        if not artifact.digest:
            raise LineageError(
                "a model without a digest cannot be registered", asked=f"{name}: {artifact.uri}", next_move="digest it first"
            )
        check_metadata(metadata)
        with self._open(write=True) as connection:
            key = self._put_artifact(connection, artifact)
            row = connection.execute("SELECT version FROM model_version WHERE name = ? AND digest = ?", (name, artifact.digest)).fetchone()
            if row is None:
                last = connection.execute("SELECT max(version) FROM model_version WHERE name = ?", (name,)).fetchone()[0] or 0
                connection.execute(
                    "INSERT INTO model_version (name, version, artifact, digest, metadata, created) VALUES (?, ?, ?, ?, ?, ?)",
                    (name, last + 1, key, artifact.digest, _json(metadata), at),
                )
            version = row["version"] if row else last + 1
        return next(item for item in self.versions(name) if item.version == version)

    def versions(self, name: str = "") -> list[ModelVersion]:
        with self._open() as connection:
            rows = connection.execute(
                "SELECT m.name, m.version, m.metadata AS model_metadata, a.* FROM model_version m JOIN artifact a ON a.key = m.artifact"
                " WHERE ? IN ('', m.name) ORDER BY m.name, m.version",
                (name,),
            ).fetchall()
        return [ModelVersion(row["name"], row["version"], _artifact(row), json.loads(row["model_metadata"])) for row in rows]


def _json(value: Mapping[str, Any]) -> str:
    return canonical_json(dict(value))


def _artifact(row: sqlite3.Row) -> Artifact:
    return Artifact(row["kind"], row["uri"], row["digest"], json.loads(row["metadata"]))


def _execution(row: sqlite3.Row) -> Execution:
    return Execution(
        row["run_id"],
        row["task"],
        row["attempt"],
        State(row["state"]),
        row["started"],
        row["finished"],
        json.loads(row["parameters"]),
        json.loads(row["properties"]),
    )
