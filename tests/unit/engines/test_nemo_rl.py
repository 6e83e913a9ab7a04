"""The NeMo RL engine's job and checkpoints (tests/engines composes it with NeMo RL's own loader)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.specs import inputs, parameters
from tuneline.config.engine_settings import OWNED
from tuneline.config.spec import RunSpec
from tuneline.core.errors import StagingError
from tuneline.engines.nemo_rl import NemoRlEngine
from tuneline.engines.nemo_rl_command import build_argv, recipe_of, settings
from tuneline.engines.nemo_rl_data import line

ENGINE = NemoRlEngine()
GEMMA: dict[str, Any] = {"train_engine": "nemo_rl", "model_id": "google/gemma-3-27b-it", "train_steps": 50}


def spec(system: str = "lustre", **changes: Any) -> RunSpec:
    return RunSpec.build(parameters(system, **{**GEMMA, **changes}))


@pytest.mark.parametrize(
    ("system", "changes", "recipe"),
    [
        ("lustre", {}, "grpo-gemma3-27b-it-8n8g-fsdp2tp8-actckpt-long.yaml"),
        ("a4x", {}, "grpo-gemma3-27b-it-8n4g-fsdp2tp4-actckpt-long.yaml"),
        ("lustre", {"model_id": "Qwen/Qwen2.5-7B"}, "grpo_math_1B.yaml"),
    ],
)
def test_the_recipe_is_that_of_model_and_machine(system: str, changes: dict[str, Any], recipe: str) -> None:
    assert recipe_of(spec(system, **changes)).rpartition("/")[2] == recipe


def test_what_tuneline_sets_cannot_be_set_behind_its_back() -> None:
    made: set[str] = set()
    for version in ("v0.5.0", "v0.7.0"):
        for changes in ({}, {"train_generation_nodes": 1, "train_wandb_secret": "s", "train_kl_coef": 0.1}):
            made |= set(settings(spec(train_engine_version=version, **changes), inputs()))
    # Everything below data.train is ours.
    assert {"data.train" if "data.train." in name else name.lstrip("+") for name in made} == set(OWNED["nemo_rl"])
    assert {owner for owner in OWNED["nemo_rl"].values() if owner} <= set(RunSpec.model_fields)


def test_the_job_has_no_token_and_resumes_by_path() -> None:
    job = ENGINE.build_job(spec(train_wandb_secret="wandb-key"), inputs(resume_from="/data/checkpoints/k/run-a1/step_10/"))
    assert job.argv[:6] == (
        "python",
        "/data/checkpoints/0123/tlgoldenruna-a1/job/tuneline_nemo_rl.py",
        "/opt/nemo-rl",
        "/data/checkpoints/0123/tlgoldenruna-a1",
        "/data/checkpoints/k/run-a1/step_10",
        "examples/run_grpo.py",
    )
    assert job.secrets == {"WANDB_API_KEY": "wandb-key"}
    assert "wandb-key" not in " ".join((*job.argv, *job.env.values(), *job.files.values()))
    assert [Path(path).name for path in job.files] == ["tuneline_nemo_rl.py"]
    assert build_argv(spec(), inputs(engine_dir="/data/code/nemo"))[2] == "/data/code/nemo"


def write(attempt: Path, step: int, *, ranks: int = 4) -> Path:
    folder = attempt / f"step_{step}"
    for part in ("weights", "optimizer"):
        (folder / "policy" / part).mkdir(parents=True)
        for name in (".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks))):
            (folder / "policy" / part / name).write_bytes(b"x")
    (folder / "training_info.json").write_text(json.dumps({"total_steps": step, "val_reward": 0.5}))
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "train_dataloader.pt").write_bytes(b"PK")
    return folder


def test_checkpoints_of_all_attempts(tmp_path: Path) -> None:
    write(tmp_path / "run-a1", 10)
    write(tmp_path / "run-a2", 20, ranks=16)
    (tmp_path / "run-a2" / "tmp_step_30" / "policy").mkdir(parents=True)
    (tmp_path / "run-a2" / "tmp_step_30" / "training_info.json").write_text("{}")
    found = ENGINE.find_checkpoints(str(tmp_path))
    assert [(c.step, c.complete, c.world_size, c.fault) for c in found] == [(10, True, 4, ""), (20, True, 16, "")]
    assert ENGINE.why_not_resume(spec(), found[0]) == ""


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "policy/weights/__2_0.distcp").unlink(), "policy/weights lacks the shards of rank 2"),
    (lambda folder: (folder / "policy/optimizer/__3_0.distcp").unlink(), "weights has shards of 4 ranks, policy/optimizer of 3"),
    (lambda folder: (folder / "policy/weights/__0_0.distcp").write_bytes(b""), "policy/weights/__0_0.distcp is empty"),
    (lambda folder: (folder / "policy/optimizer/.metadata").unlink(), "policy/optimizer/.metadata is missing"),
    (lambda folder: (folder / "train_dataloader.pt").unlink(), "train_dataloader.pt is missing"),
    (lambda folder: (folder / "training_info.json").write_text('{"total_steps": 9}'), "names step 9"),
    (lambda folder: (folder / "training_info.json").write_text("{"), "training_info.json cannot be read"),
]


@pytest.mark.parametrize(("damage", "fault"), DAMAGES)
def test_a_damaged_checkpoint_is_not_complete_and_says_why(tmp_path: Path, damage: Callable[[Path], object], fault: str) -> None:
    damage(write(tmp_path / "run-a1", 10))
    [found] = ENGINE.find_checkpoints(str(tmp_path))
    assert not found.complete
    assert fault in found.fault


def test_sharded_safetensors_are_named() -> None:
    files = {"a/step_5/policy/weights/model/shard-00001-model-00001-of-00002.safetensors": 9}
    [found] = ENGINE.inspect_checkpoints("gs://b/k", files, lambda path: "")
    assert "sharded safetensors" in found.fault


def start(tmp_path: Path, resume: str) -> str:
    [text] = ENGINE.build_job(spec(), inputs()).files.values()
    (tmp_path / "start.py").write_text(text)
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "run.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:])\n")
    attempt = str(tmp_path / "key" / "run-a2")
    command = [sys.executable, "-I", str(tmp_path / "start.py"), str(home), attempt, resume, "run.py", "--config", "a b"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_start_links_the_checkpoint_and_runs_nemo_rl_in_its_home(tmp_path: Path) -> None:
    source = write(tmp_path / "key" / "run-a1", 10)
    (tmp_path / "key" / "run-a2").mkdir()
    for _ in range(2):
        assert start(tmp_path, str(source)).endswith(f"{tmp_path / 'home'} ['--config', 'a b']\n")
    linked = tmp_path / "key" / "run-a2" / "step_10"
    assert json.loads((linked / "training_info.json").read_text())["total_steps"] == 10
    # The linked folder is no second checkpoint, and removing it, as NeMo RL does with old ones, leaves the first one whole.
    assert len(ENGINE.find_checkpoints(str(tmp_path / "key"))) == 1
    shutil.rmtree(linked)
    [left] = ENGINE.find_checkpoints(str(tmp_path / "key"))
    assert left.complete


def test_without_a_checkpoint_nothing_is_linked(tmp_path: Path) -> None:
    assert "resuming" not in start(tmp_path, "")
    assert not (tmp_path / "key").exists()


def row(*, truth: str = "18", roles: tuple[str, ...] = ("user",)) -> dict[str, Any]:
    return {"prompt": [{"role": role, "content": "How many?"} for role in roles], "reward_model": {"ground_truth": truth}}


def test_a_row_is_prompt_and_bare_answer() -> None:
    assert json.loads(line(row(truth=" 18 "))) == {"input": "How many?", "output": "18"}


@pytest.mark.parametrize("bad", [row(truth="9 + 9\n#### 18"), row(truth="#### 18"), row(truth=" "), row(roles=("system", "user"))])
def test_a_row_that_could_not_be_scored_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(StagingError):
        line(bad)
