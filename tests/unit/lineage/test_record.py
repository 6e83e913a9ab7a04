from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.lineage_chain import TickingClock
from tuneline.core.errors import LineageError
from tuneline.lineage.digests import FileDigest
from tuneline.lineage.metadata import params_sha256
from tuneline.lineage.model import Artifact, Execution, State
from tuneline.lineage.record import record_cached, start_task
from tuneline.lineage.sqlite import SqliteStore

DIGEST = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "lineage" / "lineage.sqlite")


def found(store: SqliteStore, key: str) -> Execution:
    execution = store.execution(key)
    assert execution is not None
    return execution


def test_a_task_records_what_it_was_given_read_and_wrote(store: SqliteStore) -> None:
    clock = TickingClock(100.0)
    record = start_task(store, run_id="tl1", task="train", parameters={"steps": 4}, properties={"image": "x"}, clock=clock)
    base = record.input("model", "/models/base/", kind="base", digest=DIGEST)
    step = record.output("checkpoint", "/step", kind="checkpoint")
    assert found(store, "tl1/train/1").state is State.RUNNING
    record.finish("COMPLETE", {"step": "4"})
    ended = found(store, "tl1/train/1")
    assert (ended.state, ended.started, ended.finished) == (State.COMPLETE, 101.0, 102.0)
    assert (ended.parameters, ended.properties) == ({"steps": 4}, {"image": "x", "step": "4"})
    graph = store.upstream([step.id])
    assert graph.inputs("tl1/train/1") == [base]
    assert store.find(uri="/step")[0].metadata == {
        "lineage_schema": "1", "lineage_kind": "checkpoint", "lineage_run": "tl1", "lineage_task": "train", "lineage_attempt": "1",
        "lineage_params_sha256": params_sha256({"steps": 4}),
    }  # fmt: skip


def test_a_consumers_input_meets_the_producers_output(store: SqliteStore) -> None:
    with start_task(store, run_id="tl1", task="train") as train:
        train.output("checkpoint", "/step", kind="checkpoint", digest=DIGEST)
    with start_task(store, run_id="tl1", task="convert") as convert:
        convert.input("source", "/step/", kind="checkpoint", digest=DIGEST)
        model = convert.output("model", "/hf", kind="hf")
    assert set(store.upstream([model.id]).executions) == {"tl1/train/1", "tl1/convert/1"}


def test_the_block_that_fails_ends_failed_with_its_error(store: SqliteStore) -> None:
    with pytest.raises(SystemExit), start_task(store, run_id="tl1", task="train"):
        raise SystemExit(143)
    ended = found(store, "tl1/train/1")
    assert (ended.state, ended.properties) == (State.FAILED, {"error": "SystemExit: 143"})


def test_a_task_ends_once_and_in_an_end(store: SqliteStore) -> None:
    with start_task(store, run_id="tl1", task="train") as record:
        with pytest.raises(LineageError, match="like that"):
            record.finish("RUNNING")
        record.finish(State.CACHED)
    assert found(store, "tl1/train/1").state is State.CACHED
    with pytest.raises(LineageError, match="twice"):
        record.finish()


def test_a_retry_takes_the_next_attempt(store: SqliteStore) -> None:
    start_task(store, run_id="tl1", task="train", attempt=0)
    record = start_task(store, run_id="tl1", task="train", attempt=1)
    assert record.execution.attempt == 2
    assert found(store, "tl1/train/1").state is State.FAILED


def test_the_statement_is_of_this_attempt(store: SqliteStore) -> None:
    record = start_task(store, run_id="tl1", task="convert", parameters={"shard_mb": 5}, clock=TickingClock(0.0))
    statement = record.statement(kind="hf", uri="/hf", files=[FileDigest("config.json", DIGEST, 2)])
    assert (statement.run_id, statement.task, statement.attempt, statement.parameters) == ("tl1", "convert", 1, {"shard_mb": 5})
    assert (statement.started, statement.finished) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z")


def test_a_cached_task_has_the_inputs_of_the_one_that_made_its_outputs(store: SqliteStore) -> None:
    with start_task(store, run_id="tl1", task="convert") as convert:
        step = convert.input("checkpoint", "/step", kind="checkpoint", digest=DIGEST)
        model = convert.output("model", "/hf", kind="hf", digest=DIGEST)
    cached = record_cached(store, run_id="tl2", task="convert", outputs={"model": Artifact("hf", "/hf", DIGEST)})
    assert found(store, cached.id).state is State.CACHED
    graph = store.upstream([model.id])
    assert graph.inputs(cached.id) == [step]
    assert [item.id for item in graph.producers(model.id)] == ["tl1/convert/1", "tl2/convert/1"]


def test_a_cached_task_whose_maker_is_unknown_has_no_inputs(store: SqliteStore) -> None:
    cached = record_cached(store, run_id="tl2", task="convert", outputs={"model": Artifact("hf", "/hf", DIGEST)})
    graph = store.upstream([Artifact("hf", "/hf", DIGEST).id])
    assert (list(graph.executions), graph.inputs(cached.id)) == ([cached.id], [])
