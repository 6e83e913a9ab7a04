"""The trl engine without torch: its job, its checkpoints, its digest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneline.config.spec import RunSpec
from tuneline.core.files import write_json
from tuneline.engines import trl
from tuneline.engines.base import TrainingInputs
from tuneline.engines.trl import MARKER, TrlEngine

ENGINE = TrlEngine()


def _checkpoint(folder: Path, *, ranks: int = 2) -> Path:
    names = [f"{part}/{name}" for part in ("weights", "optimizer") for name in (".metadata", *(f"__{r}_0.distcp" for r in range(ranks)))]
    for name in [*names, "config.json"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * 10)
    files = dict.fromkeys([*names, "config.json"], 10)
    write_json(folder / MARKER, {"step": int(folder.name[5:]), "world_size": ranks, "files": files})
    return folder


def test_the_job_names_everything_and_writes_nothing(tmp_path: Path) -> None:
    spec = RunSpec.build({"train_steps": 7, "train_save_every": 7})
    inputs = TrainingInputs("tlabc-a1", str(tmp_path / "base"), "/data", "", str(tmp_path / "it's an attempt"), "")
    job = ENGINE.build_job(spec, inputs)
    assert job.argv[:3] == (sys.executable, "-m", "tuneline.engines.trl_worker")
    config = json.loads(job.argv[3])
    assert RunSpec.build(config["spec"]) == spec
    assert TrainingInputs(**config["inputs"]) == inputs
    assert job.env["HF_HUB_OFFLINE"] == "1"
    assert job.env["OMP_NUM_THREADS"] == "1"
    assert list(tmp_path.iterdir()) == []
    assert ENGINE.expected_final_step(spec) == 7


def test_checkpoints_of_all_attempts_come_oldest_step_first(tmp_path: Path) -> None:
    for name in ("run-a2/step_20", "run-a1/step_10", "run-a1/step_9"):
        _checkpoint(tmp_path / name)
    (tmp_path / "run-a1" / ".step_30.tmp").mkdir()
    (tmp_path / "run-a1" / "step_final").mkdir()
    (tmp_path / "run-a1" / "metrics.jsonl").write_text("")
    found = ENGINE.find_checkpoints(str(tmp_path))
    assert [(c.step, Path(c.path).parent.name, c.complete, c.world_size, c.fault) for c in found] == [
        (9, "run-a1", True, 2, ""),
        (10, "run-a1", True, 2, ""),
        (20, "run-a2", True, 2, ""),
    ]
    assert ENGINE.find_checkpoints(str(tmp_path / "nowhere")) == []


def test_of_one_step_the_complete_one_comes_last(tmp_path: Path) -> None:
    _checkpoint(tmp_path / "run-a1" / "step_5")
    (_checkpoint(tmp_path / "run-a2" / "step_5") / MARKER).unlink()
    assert [Path(c.path).parent.name for c in ENGINE.find_checkpoints(str(tmp_path))] == ["run-a2", "run-a1"]


def _remark(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        marker = json.loads((folder / MARKER).read_text())
        change(marker)
        write_json(folder / MARKER, marker)

    return damage


def _cut(folder: Path) -> None:
    (folder / "weights/__1_0.distcp").write_bytes(b"x" * 9)


def _empty(folder: Path) -> None:
    (folder / "weights/__1_0.distcp").write_bytes(b"")
    _remark(lambda marker: marker["files"].update({"weights/__1_0.distcp": 0}))(folder)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: (folder / MARKER).unlink(), f"no {MARKER}: it was not finished"),
        (lambda folder: (folder / MARKER).write_text('{"step": 5, "wor'), "cannot be read"),
        (lambda folder: (folder / MARKER).write_text("[]"), "cannot be read"),
        (lambda folder: (folder / "optimizer/__0_0.distcp").unlink(), "optimizer/__0_0.distcp is missing"),
        (_cut, "weights/__1_0.distcp has 9 bytes, not 10"),
        (_empty, "weights/__1_0.distcp is empty"),
        (_remark(lambda marker: marker.update(step=6)), "names step 6"),
        (_remark(lambda marker: marker.update(world_size=3)), "names 2 weights shards for 3 ranks"),
        (_remark(lambda marker: marker["files"].pop("optimizer/.metadata")), "names no optimizer/.metadata"),  # type: ignore[attr-defined]
    ],
)
def test_a_damaged_checkpoint_is_not_complete_and_says_why(tmp_path: Path, damage: Callable[[Path], None], fault: str) -> None:
    damage(_checkpoint(tmp_path / "run-a1" / "step_5"))
    [found] = ENGINE.find_checkpoints(str(tmp_path))
    assert (found.step, found.complete) == (5, False)
    assert fault in found.fault


def test_the_digest_follows_every_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(trl.__file__).parent
    before = ENGINE.code_digest()
    for name in trl._SOURCES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr(trl, "__file__", str(tmp_path / "trl.py"))
    assert ENGINE.code_digest() == before
    digests = {before}
    for name in trl._SOURCES:
        with open(tmp_path / name, "a") as source:
            source.write("# changed\n")
        digests.add(ENGINE.code_digest())
    assert len(digests) == len(trl._SOURCES) + 1


def test_describing_a_job_imports_no_torch() -> None:
    code = "import sys, tuneline.engines.registry as r; r.get_engine('trl'); print(sorted({'torch', 'ray', 'trl'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
