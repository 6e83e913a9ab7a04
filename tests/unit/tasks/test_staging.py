"""Staging: whole or absent, digested, proved again before use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.tasks.artifacts import FakeArtifact
from tuneline.config.spec import RunSpec
from tuneline.core.errors import CheckpointError, LineageError, StagingError, TunelineError
from tuneline.lineage.model import State
from tuneline.lineage.sqlite import SqliteStore
from tuneline.tasks import stage_code, stage_dataset, stage_model, staging, training
from tuneline.tasks.context import running, running_spec

_HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + b"four"


def row(number: int) -> str:
    return json.dumps({"question": f"{number} + 1?", "answer": f"#### {number + 1}"}) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text(row(1) + row(2))
    (folder / "test.jsonl").write_text(row(3))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("hidden")
    return folder


def test_a_folder_becomes_a_digested_model(tmp_path: Path, model: Path) -> None:
    store, artifact = tmp_path / "store", FakeArtifact()
    staged = stage_model.run(str(store), str(model), "", 0, "", artifact)
    folder = Path(artifact.uri)
    assert folder == store / "models" / f"my-model@{staged.digest[:12]}"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "lineage.json", "model.safetensors"]
    assert artifact.metadata["lineage_digest"] == staged.digest
    assert artifact.metadata["lineage_kind"] == "base"
    assert stage_model.run(str(store), str(model), "", 0, "", FakeArtifact()) == staged
    assert [path.name for path in (store / "models").iterdir()] == [folder.name]


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_half_a_model_is_refused_and_leaves_nothing(missing: str, tmp_path: Path, model: Path) -> None:
    (model / missing).unlink()
    with pytest.raises(StagingError, match="is no Hugging Face model"):
        stage_model.run(str(tmp_path / "store"), str(model), "", 0, "", FakeArtifact())
    assert not (tmp_path / "store" / "models").exists()


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("config.json", b"{", StagingError),
        ("config.json", b"[]", StagingError),
        ("config.json", b"\xff\xfe", StagingError),
        ("model.safetensors", WEIGHTS[:-1], CheckpointError),
        ("model.safetensors", b"", CheckpointError),
        ("model.safetensors.index.json", b'{"weight_map": {"w": "model-1.safetensors"}}', CheckpointError),
    ],
)
def test_a_damaged_model_is_refused_before_it_is_copied(
    name: str, content: bytes, error: type[TunelineError], tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / name).write_bytes(content)
    monkeypatch.setattr("tuneline.tasks.staging.stage", None)
    with pytest.raises(error):
        stage_model.run(str(tmp_path / "store"), str(model), "", 0, "", FakeArtifact())


def test_a_model_of_the_hub_cache_is_copied_through_its_links(tmp_path: Path, model: Path) -> None:
    snapshot = tmp_path / ("snapshot" * 30)
    snapshot.mkdir()
    for path in model.iterdir():
        (snapshot / path.name).symlink_to(path)
    artifact = FakeArtifact()
    stage_model.run(str(tmp_path / "store"), str(snapshot), "", 0, "", artifact)
    assert not (Path(artifact.uri) / "model.safetensors").is_symlink()
    assert (Path(artifact.uri) / "model.safetensors").read_bytes() == WEIGHTS


def test_what_cannot_be_copied_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    source, beside = tmp_path / "a", tmp_path / "b"
    for folder in (source, beside):
        folder.mkdir()
    (source / "first").write_text("x")
    odd = source / "odd"
    cases = [
        (lambda: os.mkfifo(odd), "is no file"),
        (lambda: odd.symlink_to("/no/such/file"), "No such file"),
        (lambda: odd.symlink_to(source), "a folder that holds it"),
        (lambda: (odd.symlink_to(beside), (beside / "back").symlink_to(source)), "a folder that holds it"),
    ]
    for number, (make, wanted) in enumerate(cases):
        make()
        target = tmp_path / str(number)
        target.mkdir()
        with pytest.raises(StagingError, match=wanted) as caught:
            staging.copy_folder(str(source))(target)
        assert "odd" in caught.value.message
        assert list(target.iterdir()) == []
        odd.unlink()


def test_a_changed_staged_folder_is_not_taken_for_the_old_one(tmp_path: Path, model: Path) -> None:
    artifact = FakeArtifact()
    stage_model.run(str(tmp_path / "store"), str(model), "", 0, "", artifact)
    (Path(artifact.uri) / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"!")
    with pytest.raises(LineageError, match="is not what was recorded"):
        stage_model.run(str(tmp_path / "store"), str(model), "", 0, "", FakeArtifact())


def test_a_data_folder_becomes_parquet_with_counts(tmp_path: Path, data: Path) -> None:
    artifact = FakeArtifact()
    staged = stage_dataset.run(str(tmp_path / "store"), str(data), "", "gsm8k", 0, "", artifact)
    assert (staged.train_rows, staged.test_rows) == (2, 1)
    assert sorted(path.name for path in Path(artifact.uri).iterdir()) == ["lineage.json", "test.parquet", "train.parquet"]
    again = stage_dataset.run(str(tmp_path / "store"), str(data), "", "gsm8k", 0, "other", FakeArtifact())
    assert again.digest == staged.digest


def test_a_refused_data_set_leaves_nothing_and_is_recorded_as_failed(tmp_path: Path, data: Path) -> None:
    (data / "test.jsonl").write_text(row(1))
    with pytest.raises(StagingError, match="also in train"):
        stage_dataset.run(str(tmp_path / "store"), str(data), "", "gsm8k", 0, "", FakeArtifact())
    assert list((tmp_path / "store" / "datasets").iterdir()) == []
    execution = SqliteStore(tmp_path / "store" / "lineage" / "lineage.sqlite").execution("/stage_dataset/1")
    assert execution is not None
    assert execution.state is State.FAILED


def test_launch_proves_the_staged_folders_and_the_key_follows_their_content(tmp_path: Path, data: Path, model: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("def score(completions, truths): return [0.0 for _ in completions]\n")
    spec = RunSpec.build({"output_root": str(tmp_path / "store"), "train_code_uri": str(code), "train_reward": "mine:score"})
    artifacts = [FakeArtifact() for _ in range(3)]
    stage_model.run(spec.output_root, str(model), "", 0, "", artifacts[0])
    stage_dataset.run(spec.output_root, str(data), "", "gsm8k", 0, "", artifacts[1])
    stage_code.run(spec.to_json(), "job", artifacts[2])
    keys = []
    for changed in ({}, {"train_steps": 101}, {"output_shard_mb": 7}, {"train_attempts": 9}):
        with running_spec("launch_raycluster", spec.to_json(), "job") as (task, _):
            staged = training.take_staged(task, *artifacts)
            keys.append(training.key_of(RunSpec.build({**spec.model_dump(), **changed}), Engine(), staged))
    assert keys[0] != keys[1]
    assert keys[0] == keys[2] == keys[3]
    (Path(artifacts[1].uri) / "test.parquet").write_bytes(b"other")
    with (
        pytest.raises(LineageError, match="the staged data set is not what was recorded"),
        running_spec("x", spec.to_json(), "job") as (task, _),
    ):
        training.take_staged(task, *artifacts)


class Engine:
    """Only what a training key asks of an engine."""

    def code_digest(self) -> str:
        return "e" * 64


def test_nothing_is_staged_into_a_bucket(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before GPUs: staging is what they wait for."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(StagingError, match="cannot be staged into a bucket"),
        running("stage_model", root="gs://bucket", run_id="", parameters={}) as task,
    ):
        staging.stage(task, task.store.code, staging.copy_folder(str(model)), kind="base", origin={"id": "m"})
    assert sorted(tmp_path.rglob("*")) == before
