"""What was deleted is made again and verifies; a record that was edited is never taken for the one that was written."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from tests.unit.tasks.artifacts import FakeArtifact
from tuneline.config.store import Store
from tuneline.core.files import write_json
from tuneline.gcp.documents import Folder
from tuneline.lineage import sidecar
from tuneline.lineage.audit import audit
from tuneline.lineage.findings import AuditResult, Severity
from tuneline.lineage.record import start_task
from tuneline.lineage.sqlite import SqliteStore
from tuneline.tasks import convert, stage_dataset, stage_model
from tuneline.tasks.context import Task, announce_run

KINDS = ("models", "datasets", "checkpoints", "hf")
TENSORS = {"model.embed_tokens.weight": torch.arange(6.0).reshape(3, 2), "lm_head.weight": torch.ones(3, 2)}


@dataclass
class Place:
    """A store, and the tasks of runs in it, with a training that only copies the base's weights."""

    root: Path
    runs: int = 0
    outputs: dict[str, FakeArtifact] = field(default_factory=dict)

    @property
    def folders(self) -> dict[str, Path]:
        return {kind: Path(artifact.uri) for kind, artifact in self.outputs.items()}

    @property
    def lineage(self) -> SqliteStore:
        return SqliteStore(Path(Store(str(self.root)).lineage_db()))

    def run(self, training_key: str = "key") -> None:
        """A whole run without the cache."""
        self.runs += 1
        announce_run(f"tl{self.runs}")
        out = {kind: FakeArtifact() for kind in KINDS}
        stage_model.run(str(self.root), str(self.root.parent / "model"), "", 0, "", out["models"])
        stage_dataset.run(str(self.root), str(self.root.parent / "data"), "", "gsm8k", 0, "", out["datasets"])
        self._train(out, training_key)
        convert.run(str(self.root), 100, out["models"], out["checkpoints"], out["hf"])
        self.outputs = out

    def _train(self, out: dict[str, FakeArtifact], training_key: str) -> None:
        of_key = self.root / "checkpoints" / training_key
        done = next(of_key.glob("*/step_2"), of_key / f"tl{self.runs}-a1" / "step_2")
        inputs = {"base": out["models"], "dataset": out["datasets"]}
        if not done.exists():
            dcp.save(dict(TENSORS), checkpoint_id=str(done / "weights"), no_dist=True)
            (done / "COMPLETE").write_text('{"step": 2, "world_size": 1}')
            taken = {name: {"uri": artifact.uri, "digest": artifact.metadata["lineage_digest"]} for name, artifact in inputs.items()}
            described = {
                "parameters": {"train_steps": 2},
                "training_key": training_key,
                "hardware": "x",
                "versions": {},
                "started": "2027-01-15T08:00:01Z",
            }
            write_json(of_key / "training.json", {**taken, "code": {"uri": "", "digest": ""}, **described})
        with start_task(self.lineage, run_id=f"tl{self.runs}", task="train") as record:
            task = Task("train", Store(str(self.root)), f"tl{self.runs}", record, self.lineage, Folder())
            for name, artifact in inputs.items():
                task.take(name, artifact)
            producer, _, attempt = done.parent.name.rpartition("-a")
            task.emit("checkpoint", out["checkpoints"], str(done), kind="checkpoint", digest="", run_id=producer, attempt=attempt, step="2")

    def audit(self) -> AuditResult:
        return audit(self.outputs["hf"].uri, store=self.lineage)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("TUNELINE_EVENTS", str(tmp_path / "events.jsonl"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    save_file(TENSORS, tmp_path / "model" / "model.safetensors")
    (tmp_path / "data").mkdir()
    for name, number in (("train", 1), ("test", 2)):
        (tmp_path / "data" / f"{name}.jsonl").write_text(json.dumps({"question": f"{number} + 1?", "answer": f"#### {number + 1}"}) + "\n")
    made = Place(tmp_path / "store")
    made.run()
    assert made.audit().findings == ()
    return made


def told(result: AuditResult, severity: Severity) -> str:
    return "\n".join(f"{item.subject}: {item.what}" for item in result.findings if item.severity is severity)


@pytest.mark.parametrize("kind", ["models", "datasets", "hf"])
def test_what_is_deleted_and_made_again_verifies_each_time(place: Place, kind: str) -> None:
    first = {(place.folders[kind] / "lineage.json").read_bytes()}
    for times in (2, 3):
        shutil.rmtree(place.root / kind)
        place.run()
        first.add((place.folders[kind] / "lineage.json").read_bytes())
        assert len(first) == times
        result = place.audit()
        assert (result.exit_code, told(result, Severity.MISMATCH)) == (0, "")
    place.run()
    assert place.audit().exit_code == 0


@pytest.mark.parametrize("remade", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_record_stays_a_mismatch_through_later_runs(place: Place, kind: str, remade: bool) -> None:
    if remade and kind != "checkpoints":
        shutil.rmtree(place.root / kind)
        place.run()
    folder = place.folders[kind]
    written = (folder / "lineage.json").read_bytes()
    (folder / "lineage.json").write_bytes(replace(sidecar.read(folder), started="2020-01-01T00:00:00Z").to_json())
    for _ in range(2):
        result = place.audit()
        assert result.exit_code == 1
        assert f"{folder}: lineage_manifest_sha256" in told(result, Severity.MISMATCH)
        place.run()
    (folder / "lineage.json").write_bytes(written)
    assert place.audit().exit_code == 0


@pytest.mark.parametrize("kind", ["models", "datasets", "hf"])
def test_a_task_killed_between_publishing_and_recording_leaves_what_verifies(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = Task.emit

    def killed(task: Task, name: str, *arguments: Any, **keys: Any) -> None:
        if name == {"models": "model", "datasets": "dataset", "hf": "hf_model"}[kind]:
            raise KeyboardInterrupt
        emit(task, name, *arguments, **keys)

    shutil.rmtree(place.root / kind)
    with monkeypatch.context() as patch:
        patch.setattr(Task, "emit", killed)
        with pytest.raises(KeyboardInterrupt):
            place.run()
    assert place.folders[kind].is_dir()
    place.run()
    assert place.audit().exit_code == 0


def test_a_lost_store_is_incomplete_however_often_the_run_is_repeated(place: Place) -> None:
    """Nobody can tell any more whether what lies there is what was written."""
    shutil.rmtree(place.root / "lineage")
    for _ in range(2):
        place.run()
        result = place.audit()
        assert (result.exit_code, told(result, Severity.MISMATCH)) == (2, "")
        for folder in place.folders.values():
            assert f"{folder}: lineage.json was found there" in told(result, Severity.INCOMPLETE)


def test_a_lost_store_and_training_is_incomplete_after_one_to_equal_weights(place: Place) -> None:
    for name in ("lineage", "checkpoints"):
        shutil.rmtree(place.root / name)
    place.run()
    result = place.audit()
    assert (result.exit_code, told(result, Severity.MISMATCH)) == (2, "")
