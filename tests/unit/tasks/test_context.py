"""Around every task: its record, its failure, its run."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.gke_specs import spec_of
from tests.unit.tasks.artifacts import FakeArtifact
from tuneline.config.spec import RunSpec
from tuneline.core.errors import ClusterError, LineageError, StagingError
from tuneline.lineage.model import State
from tuneline.lineage.sqlite import SqliteStore
from tuneline.tasks import cleanup, preflight
from tuneline.tasks.context import announce_run, current_run, local_run_id, run_id_of, running, running_spec


@pytest.fixture(autouse=True)
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNELINE_EVENTS", str(tmp_path / "events.jsonl"))
    return tmp_path / "events.jsonl"


def seen(path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["task"], row["state"]) for row in rows if row["kind"] == "task"]


def test_a_failure_is_told_in_the_store_and_forgotten_when_the_retry_succeeds(tmp_path: Path, events: Path) -> None:
    with (
        pytest.raises(StagingError),
        running("stage_code", root=str(tmp_path), run_id="tl1", parameters={}),
    ):
        raise StagingError("no such thing", next_move="look again")
    told = cleanup.errors_of(str(tmp_path / "runs" / "tl1" / "errors"))
    assert [(error["task"], error["error"]) for error in told] == [("stage_code", "[TL210] no such thing\n  next: look again")]
    with running("stage_code", root=str(tmp_path), run_id="tl1", parameters={}):
        pass
    assert cleanup.errors_of(str(tmp_path / "runs" / "tl1" / "errors")) == []
    store = SqliteStore(tmp_path / "lineage" / "lineage.sqlite")
    states = [execution.state for number in (1, 2) if (execution := store.execution(f"tl1/stage_code/{number}"))]
    assert states == [State.FAILED, State.COMPLETE]
    assert seen(events) == [("stage_code", state) for state in ("started", "failed", "started", "finished")]


def test_a_cached_producer_is_recorded_by_its_consumer(tmp_path: Path, events: Path) -> None:
    artifact = FakeArtifact()
    with running("stage_model", root=str(tmp_path), run_id="tl1", parameters={"model_id": "m"}) as task:
        task.emit("model", artifact, str(tmp_path / "models" / "m"), kind="base", digest="a" * 64)
    for _ in range(2):
        with running("launch_raycluster", root=str(tmp_path), run_id="tl2", parameters={}) as task:
            assert task.take("model", artifact).digest == "a" * 64
    store = SqliteStore(tmp_path / "lineage" / "lineage.sqlite")
    execution = store.execution("tl2/stage_model/1")
    assert execution is not None
    assert execution.state is State.CACHED
    assert store.execution("tl2/stage_model/2") is None
    assert seen(events).count(("stage_model", "cached")) == 1


def test_an_input_without_lineage_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(LineageError, match="carries no lineage"),
        running("convert", root=str(tmp_path), run_id="tl1", parameters={}) as task,
    ):
        task.take("model", FakeArtifact(uri="/somewhere", metadata={"other": "x"}))


def test_preflight_tells_the_run_to_tasks_that_may_not_know_the_job(tmp_path: Path) -> None:
    assert current_run() == ""
    spec = RunSpec.build({"output_root": str(tmp_path)})
    checked = preflight.run({**spec.model_dump(), "job_name": "job-1"})
    assert checked.run_id == local_run_id("job-1") == current_run()
    assert RunSpec.from_json(checked.spec) == spec
    announce_run("tlother")
    assert current_run() == "tlother"


def test_preflight_names_what_this_computer_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec.build({"output_root": str(tmp_path)})
    assert list(preflight.faults_of_this_computer(spec)) == []
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "trl" else object())
    monkeypatch.setattr(preflight, "FREE_BYTES", 1 << 62)
    faults = list(preflight.faults_of_this_computer(spec))
    assert len(faults) == 2
    assert "MB needed" in faults[0]
    assert "trl not installed" in faults[1]


def test_a_full_disk_does_not_hide_why_a_task_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail() -> None:
        with running("stage_code", root=str(tmp_path), run_id="tl1", parameters={}):
            monkeypatch.setattr("tuneline.gcp.documents.Folder.write", full)
            monkeypatch.setattr("tuneline.tasks.context.log.event", full)
            monkeypatch.setattr("tuneline.lineage.record.TaskRecord.finish", full)
            raise StagingError("the reason")

    with pytest.raises(StagingError, match="the reason"):
        fail()
    assert "stage_code failed: [TL210] the reason" in capsys.readouterr().out


def test_cleanup_releases_although_the_lineage_store_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    monkeypatch.setattr("tuneline.tasks.release_gpus.release", lambda store, run_id: released.append(run_id) or "gone")
    (tmp_path / "lineage").mkdir()
    (tmp_path / "lineage" / "lineage.sqlite").write_bytes(b"no database, but long enough to be taken for one" * 10)
    with pytest.raises(LineageError, match="cannot be used"):
        cleanup.end_run("tl1", str(tmp_path), "FAILED")
    assert released == ["tl1"]


def test_a_cleanup_that_cannot_release_fails_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(store: object, run_id: str) -> str:
        raise ClusterError("processes do not end")

    monkeypatch.setattr("tuneline.tasks.release_gpus.release", stuck)
    with pytest.raises(ClusterError, match="do not end"):
        cleanup.end_run("tl1", str(tmp_path), "FAILED")
    execution = SqliteStore(tmp_path / "lineage" / "lineage.sqlite").execution("tl1/cleanup/1")
    assert execution is not None
    assert execution.state is State.FAILED


def test_running_spec_validates_again(tmp_path: Path) -> None:
    spec = RunSpec.build({"output_root": str(tmp_path)})
    with running_spec("provision_network", spec.to_json(), "job-1") as (task, got):
        assert got == spec
        assert task.run_id == local_run_id("job-1")


def test_preflight_on_gke_wants_an_image_and_nothing_of_this_computer() -> None:
    assert list(preflight.faults_on_gke(spec_of("standard"))) == [
        "gpu_image='': train_engine=trl has no image of its own on GKE; name one that holds it, by digest"
    ]
    assert list(preflight.faults_on_gke(spec_of("standard", gpu_image="example.test/steps-local@sha256:" + "a" * 64))) == []


def test_a_run_on_gke_has_another_id_than_one_on_this_computer() -> None:
    ids = {run_id_of("local", "", "", "job"), run_id_of("gke", "p", "r", "job"), run_id_of("gke", "p", "r2", "job")}
    assert len(ids) == 3
    assert run_id_of("local", "p", "r", "job") == local_run_id("job")
