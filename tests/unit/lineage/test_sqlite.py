from __future__ import annotations

import multiprocessing
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tuneline.core.errors import LineageError
from tuneline.lineage.metadata import LATER_SIDECARS, SIDECAR_KEY, check_metadata, sidecars
from tuneline.lineage.model import Artifact, Event, Execution, State
from tuneline.lineage.sqlite import SqliteStore


def digest(text: str) -> str:
    return (text.encode().hex() * 64)[:64]


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "my store?" / "lineage" / "lineage.sqlite")


def ran(
    store: SqliteStore, task: str, inputs: list[Artifact], outputs: list[Artifact], state: State = State.COMPLETE, run: str = "tl1"
) -> Execution:
    execution = store.begin(Execution(run, task, 1, started=1.0))
    for direction, artifacts in (("input", inputs), ("output", outputs)):
        for number, artifact in enumerate(artifacts):
            store.put_artifact(artifact)
            store.put_event(Event(execution.id, artifact.id, direction, f"{direction}{number}"))  # type: ignore[arg-type]
    store.end(execution.id, state, 2.0, {})
    return execution


def names(items: object) -> set[str]:
    return {item.uri for item in items.values()}  # type: ignore[attr-defined]


BASE, DATA = Artifact("base", "/models/base", digest("b")), Artifact("dataset", "/datasets/data", digest("d"))
STEP, MODEL = Artifact("checkpoint", "/checkpoints/step", digest("c")), Artifact("hf", "/hf/model", digest("h"))


def test_what_is_put_is_found_by_uri_digest_and_kind(store: SqliteStore) -> None:
    for artifact in (BASE, DATA, Artifact("base", "/elsewhere", BASE.digest)):
        store.put_artifact(artifact)
    assert store.find(uri="/models/base//") == [BASE]
    assert [item.uri for item in store.find(digest=BASE.digest)] == ["/models/base", "/elsewhere"]
    assert store.find(digest=BASE.digest, kind="dataset") == []
    assert store.find(kind="dataset") == [DATA] == [store.artifact(DATA.id)]
    assert store.uris() == ["/datasets/data", "/elsewhere", "/models/base"]
    assert store.artifact("none") is None


def test_two_contents_at_one_uri_are_two_artifacts(store: SqliteStore) -> None:
    other = Artifact("base", BASE.uri, digest("x"))
    store.put_artifact(BASE)
    store.put_artifact(other)
    assert store.find(uri=BASE.uri) == [BASE, other]


def test_metadata_grow_and_are_never_changed(store: SqliteStore) -> None:
    store.put_artifact(Artifact("base", "/x", "", {"lineage_run": "first"}))
    store.put_artifact(Artifact("base", "/x", "", {"lineage_run": "second", "lineage_step": "4"}))
    assert store.find(uri="/x")[0].metadata == {"lineage_run": "first", "lineage_step": "4"}


def test_the_first_sidecar_and_the_newest_are_accepted_and_only_put_sidecar_adds_one(store: SqliteStore) -> None:
    artifact = Artifact("base", "/x", digest("x"))
    written = [digest(f"{number:02}") for number in range(LATER_SIDECARS + 3)]
    for value in (*written, written[-1], written[0]):
        store.put_sidecar(artifact, value)
    store.put_artifact(replace(artifact, metadata={SIDECAR_KEY: digest("found")}))
    known = store.find(uri="/x")[0].metadata
    assert sidecars(known) == [written[0], *written[:2:-1]]
    check_metadata(known)


def test_attempts_count_up_and_a_new_one_ends_those_before(store: SqliteStore) -> None:
    first = store.begin(Execution("tl1", "train", 1, parameters={"steps": 4}, properties={"image": "x"}))
    other_run = store.begin(Execution("tl2", "train", 1))
    second = store.begin(Execution("tl1", "train", 1))
    fifth = store.begin(Execution("tl1", "train", 5))
    assert [item.attempt for item in (first, other_run, second, fifth)] == [1, 1, 2, 5]
    ended = store.execution(first.id)
    assert ended is not None
    assert (ended.state, ended.properties, ended.parameters) == (State.FAILED, {"image": "x", "ended_by": "attempt 2"}, {"steps": 4})
    store.end(fifth.id, State.COMPLETE, 9.5, {"uri": "/x"})
    assert store.execution(fifth.id) == Execution("tl1", "train", 5, State.COMPLETE, 0.0, 9.5, {}, {"uri": "/x"})
    assert getattr(store.execution(other_run.id), "state", None) is State.RUNNING


def test_what_never_began_or_is_not_held_is_refused(store: SqliteStore) -> None:
    with pytest.raises(LineageError, match="never began"):
        store.end("tl1/train/1", State.COMPLETE, 1.0, {})
    execution = store.begin(Execution("tl1", "train", 1))
    with pytest.raises(LineageError, match="does not hold"):
        store.put_event(Event(execution.id, BASE.id, "input", "model"))
    store.put_artifact(BASE)
    for _ in range(2):
        store.put_event(Event(execution.id, BASE.id, "input", "model"))
    assert len(store.downstream([BASE.id]).events) == 1


def test_closures_go_up_and_down_and_no_further(store: SqliteStore) -> None:
    metrics, other = Artifact("metrics", "/metrics"), Artifact("hf", "/hf/other", digest("o"))
    train = ran(store, "train", [BASE, DATA], [STEP, metrics])
    convert = ran(store, "convert", [STEP], [MODEL])
    ran(store, "train", [BASE], [other], run="tl2")
    up = store.upstream([MODEL.id])
    assert names(up.artifacts) == {item.uri for item in (BASE, DATA, STEP, MODEL)}
    assert set(up.executions) == {train.id, convert.id}
    assert [item.id for item in up.producers(MODEL.id)] == [convert.id]
    assert up.inputs(train.id) == [BASE, DATA]
    down = store.downstream([DATA.id])
    assert names(down.artifacts) == {item.uri for item in (DATA, STEP, metrics, MODEL)}
    assert names(store.downstream([BASE.id]).artifacts) == {item.uri for item in (BASE, STEP, metrics, MODEL, other)}
    assert store.upstream(["unknown"]).artifacts == {}


def test_a_circle_ends(store: SqliteStore) -> None:
    one, other = Artifact("hf", "/one", digest("1")), Artifact("hf", "/other", digest("2"))
    ran(store, "there", [one], [other])
    ran(store, "back", [other], [one])
    for graph in (store.upstream([one.id]), store.downstream([one.id])):
        assert names(graph.artifacts) == {"/one", "/other"}
        assert len(graph.events) == 4


def test_equal_content_stands_in_for_what_nobody_is_known_to_have_made(store: SqliteStore) -> None:
    copy = Artifact("checkpoint", "/copied/step", STEP.digest)
    stranger = Artifact("hf", "/of/another/kind", STEP.digest)
    ran(store, "train", [BASE], [STEP])
    ran(store, "other", [DATA], [stranger])
    ran(store, "convert", [copy], [MODEL])
    assert names(store.upstream([MODEL.id]).artifacts) == {"/hf/model", "/copied/step", "/checkpoints/step", "/models/base"}
    assert names(store.downstream([BASE.id]).artifacts) == {"/models/base", "/checkpoints/step", "/copied/step", "/hf/model"}


def test_a_place_recorded_before_it_was_digested_is_the_same_thing(store: SqliteStore) -> None:
    undigested = Artifact("checkpoint", STEP.uri)
    ran(store, "train", [BASE], [undigested])
    ran(store, "convert", [STEP], [MODEL])
    assert names(store.upstream([MODEL.id]).artifacts) == {MODEL.uri, STEP.uri, BASE.uri}
    assert MODEL.uri in names(store.downstream([BASE.id]).artifacts)


def test_copies_made_in_their_own_right_do_not_mix_their_origins(store: SqliteStore) -> None:
    again = Artifact("checkpoint", "/checkpoints/again", STEP.digest)
    ran(store, "train", [BASE], [STEP], run="tl1")
    ran(store, "train", [DATA], [again], run="tl2")
    assert names(store.upstream([STEP.id]).artifacts) == {STEP.uri, BASE.uri}


def test_versions_count_up_and_the_same_digest_is_the_same_version(store: SqliteStore) -> None:
    moved, other = Artifact("hf", "/moved", MODEL.digest), Artifact("hf", "/hf/other", digest("o"))
    first = store.register("tiny", MODEL, {"lineage_run": "tl1"}, at=1.0)
    assert (first.version, first.uri, first.artifact) == (1, "tuneline:tiny@1", MODEL)
    assert store.register("tiny", other, {}, at=2.0).version == 2
    again = store.register("tiny", moved, {"lineage_run": "tl2"}, at=3.0)
    assert (again.version, again.artifact, again.metadata) == (1, MODEL, {"lineage_run": "tl1"})
    assert store.register("big", MODEL, {}, at=4.0).version == 1
    assert [(item.name, item.version) for item in store.versions()] == [("big", 1), ("tiny", 1), ("tiny", 2)]
    assert store.versions("none") == []
    with pytest.raises(LineageError, match="without a digest"):
        store.register("tiny", Artifact("hf", "/x"), {}, at=5.0)


def _write(path: Path, process: int, start: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    store = SqliteStore(path)
    for number in range(15):
        store.begin(Execution("tl1", f"task{process}", 1))
        store.begin(Execution("tl1", "shared", 1))
        store.register("tiny", Artifact("hf", "/same", digest("same")), {}, at=0.0)
        store.register("tiny", Artifact("hf", f"/{process}/{number}", digest(f"{process}-{number:02d}")), {}, at=0.0)


def test_processes_that_make_and_write_one_store_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lineage" / "lineage.sqlite"
    context = multiprocessing.get_context("fork")
    start = context.Event()
    processes = [context.Process(target=_write, args=(path, number, start)) for number in range(3)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    store = SqliteStore(path, read_only=True)
    assert [item.version for item in store.versions("tiny")] == list(range(1, 3 * 15 + 2))
    assert getattr(store.execution("tl1/shared/45"), "state", None) is State.RUNNING
    assert all(getattr(store.execution(f"tl1/task{number}/15"), "attempt", 0) == 15 for number in range(3))


def test_a_writer_killed_in_the_middle_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lineage" / "lineage.sqlite"
    SqliteStore(path).put_artifact(BASE)
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO artifact (id, kind, uri, digest, metadata) VALUES (?, 'hf', ?, '', '{}')",
            [(str(n), "x" * 4000) for n in range(200)],
        )
        os._exit(9)
    os.waitpid(child, 0)
    assert path.with_name("lineage.sqlite-journal").stat().st_size > 0
    store = SqliteStore(path, read_only=True)
    assert store.uris() == [BASE.uri]
    store = SqliteStore(path)
    store.put_artifact(DATA)
    assert len(store.uris()) == 2


def test_reading_only_makes_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lineage" / "lineage.sqlite"
    with pytest.raises(LineageError, match="no lineage store"):
        SqliteStore(path, read_only=True)
    assert not path.parent.exists()
    SqliteStore(path)
    with pytest.raises(LineageError, match="for reading only"):
        SqliteStore(path, read_only=True).put_artifact(BASE)


def test_what_is_no_store_of_this_version_is_refused(tmp_path: Path) -> None:
    newer, foreign, damaged = tmp_path / "newer", tmp_path / "foreign", tmp_path / "damaged"
    SqliteStore(newer)
    for path, statement in ((newer, "PRAGMA user_version = 2"), (foreign, "CREATE TABLE theirs (x)")):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
    damaged.write_bytes(b"no database" * 100)
    for path, told in ((newer, "schema version 2"), (foreign, "another program's database"), (damaged, "file is not a database")):
        for read_only in (True, False):
            with pytest.raises(LineageError) as error:
                SqliteStore(path, read_only=read_only)
            assert told in str(error.value)
