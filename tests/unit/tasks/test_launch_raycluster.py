from __future__ import annotations

from pathlib import Path

from tests.fakes.rayjobs import FakeClock, FakeCluster, FakeEngine, FakeRunner, write_checkpoint
from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.tasks.launch_raycluster import launch


def call(root: Path, cluster: FakeCluster, **spec: object) -> str:
    built = RunSpec.build({"train_steps": 40, "train_save_every": 10, **spec})
    return launch(built, Store(str(root)), "tlaaa", "k", FakeEngine(), clock=FakeClock(), cluster=cluster)


def test_starts_a_cluster_and_returns_its_record(tmp_path: Path) -> None:
    cluster = FakeCluster()
    assert call(tmp_path, cluster) == "the record"
    assert cluster.calls == ["ensure", "renew"]


def test_adopts_a_cluster_that_lives(tmp_path: Path) -> None:
    cluster = FakeCluster(current=FakeRunner())
    assert call(tmp_path, cluster) == "the record"
    assert cluster.calls == ["ensure"]


def test_starts_nothing_where_training_is_complete(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoints" / "k" / "tlbbb-a1", 40)
    cluster = FakeCluster()
    assert call(tmp_path, cluster) == ""
    assert cluster.calls == []


def test_a_partial_training_or_a_forced_one_gets_its_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "k" / "tlbbb-a1"
    write_checkpoint(folder, 30)
    assert call(tmp_path, FakeCluster()) == "the record"
    write_checkpoint(folder, 40)
    assert call(tmp_path, FakeCluster(), train_force=True) == "the record"
