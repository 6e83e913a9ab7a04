"""The verl engine's job (tests/engines composes it under verl's own configuration)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.specs import CODE, inputs, spec
from tuneline.config.engine_settings import OWNED, recorded
from tuneline.config.spec import RunSpec
from tuneline.engines.base import Checkpoint, training_key
from tuneline.engines.verl import VerlEngine
from tuneline.engines.verl_command import build_argv, settings

ENGINE = VerlEngine()
EVERYTHING: dict[str, Any] = {
    "train_kl_coef": 0.001,
    "train_lora_rank": 16,
    "train_tools": "tools.yaml",
    "train_agent_loop": "loops.yaml:mine",
    "train_max_turns": 2,
    "train_code_uri": CODE,
}


def test_the_tutorial_s_run() -> None:
    one = spec(train_learning_rate=1e-5, train_micro_batch=64, train_save_every=10, train_steps=58)
    argv = build_argv(one, inputs())
    assert argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    for wanted in (
        "data.train_batch_size=256",
        "actor_rollout_ref.actor.ppo_mini_batch_size=256",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=8",
        "algorithm.adv_estimator=grpo",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=8",
        "trainer.total_training_steps=58",
        "trainer.max_actor_ckpt_to_keep=2",
        "trainer.logger=[console,tensorboard]",
        "trainer.val_before_train=True",
        "trainer.resume_mode=disable",
    ):
        assert wanted in argv
    assert not [argument for argument in argv if "kl_coef" in argument or ".ref." in argument]


def test_a_kl_term_comes_with_its_reference_or_not_at_all() -> None:
    with_kl = settings(spec(train_kl_coef=0.001), inputs())
    assert with_kl["actor_rollout_ref.actor.use_kl_loss"] is True
    assert with_kl["actor_rollout_ref.actor.kl_loss_coef"] == 0.001
    assert "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu" in with_kl
    assert settings(spec(), inputs())["actor_rollout_ref.actor.use_kl_loss"] is False


def test_a_resume_names_its_checkpoint() -> None:
    argv = build_argv(spec(), inputs(resume_from="/data/checkpoints/k/run-a1/global_step_10/"))
    assert "trainer.resume_mode=resume_path" in argv
    # verl reads the step from what stands behind `global_step_`.
    assert "trainer.resume_from_path=/data/checkpoints/k/run-a1/global_step_10" in argv


def test_tools_and_agent_loops_lie_in_the_user_s_code() -> None:
    found = settings(spec(**EVERYTHING), inputs(code_dir="/data/code/c"))
    assert found["actor_rollout_ref.rollout.mode"] == "async"
    assert found["actor_rollout_ref.rollout.multi_turn.tool_config_path"] == "/data/code/c/tools.yaml"
    assert found["actor_rollout_ref.rollout.agent.agent_loop_config_path"] == "/data/code/c/loops.yaml"
    assert found["actor_rollout_ref.rollout.agent.default_agent_loop"] == "mine"


def test_what_tuneline_sets_cannot_be_set_behind_its_back() -> None:
    made: set[str] = set()
    for version in ("0.6.1", "0.9.1"):
        for changes in ({}, EVERYTHING):
            one = spec(train_engine_version=version, **changes)
            found = settings(one, inputs(code_dir="/c", resume_from="/x/global_step_1"))
            assert set(found) <= recorded("verl", version) | {"actor_rollout_ref.rollout.load_format"}
            made |= set(found)
    assert made == set(OWNED["verl"])


@pytest.mark.parametrize("owner", sorted(set(filter(None, OWNED["verl"].values()))))
def test_the_parameter_that_sets_it_exists(owner: str) -> None:
    assert owner in RunSpec.model_fields


def test_the_job_carries_the_reward_and_no_secret() -> None:
    job = ENGINE.build_job(
        spec(train_wandb_secret="wandb-key", train_reward="exact"), inputs(code_dir="/data/code/c", engine_dir="/data/v")
    )
    assert job.env["TUNELINE_REWARD"] == "exact"
    assert job.env["PYTHONPATH"] == "/data/code/c:/data/v"
    assert job.env["HF_HUB_OFFLINE"] == "1"
    assert job.env["TENSORBOARD_DIR"].startswith("/data/checkpoints/")
    assert job.secrets == {"WANDB_API_KEY": "wandb-key"}
    assert "WANDB_API_KEY" not in job.env
    assert "trainer.logger=[console,tensorboard,wandb]" in job.argv
    [(path, text)] = job.files.items()
    assert f"custom_reward_function.path={path}" in job.argv
    assert "def compute_score(" in text


def test_the_reward_file_runs_alone(tmp_path: Path) -> None:
    [(_, text)] = ENGINE.build_job(spec(), inputs()).files.items()
    (tmp_path / "reward_of_verl.py").write_text(text)
    (tmp_path / "mine.py").write_text("def half(completions, truths):\n    return [0.5 for _ in completions]\n")
    code = (
        "from reward_of_verl import compute_score as score; import os\n"
        "print(score(data_source='x', solution_str='so #### 18', ground_truth='18', extra_info={}))\n"
        "print(score('x', 'so 18', '18'))\n"
        "os.environ['TUNELINE_REWARD'] = 'mine:half'\n"
        "print(score('x', '', ''))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        env={"TUNELINE_REWARD": "gsm8k"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1.0", "0.0", "0.5"]


def test_another_number_of_gpus_is_another_training_and_no_resume() -> None:
    keys = {
        training_key(spec(**changes), ENGINE, base_digest="b", data_digest="d", code_digest="", image="i")
        for changes in ({}, {"gpu_nodes": 4}, {"train_engine_version": "0.9.1"}, {"train_seed": 1})
    }
    assert len(keys) == 4
    checkpoint = Checkpoint(10, "/data/checkpoints/k/a/global_step_10", complete=True, world_size=16)
    assert ENGINE.why_not_resume(spec(), checkpoint) == ""
    assert "written by 16 GPUs" in ENGINE.why_not_resume(spec(gpu_nodes=4), checkpoint)


def test_how_it_is_watched_does_not_change_what_it_computes() -> None:
    keys = {
        training_key(spec(**changes), ENGINE, base_digest="b", data_digest="d", code_digest="", image="i")
        for changes in ({}, {"train_flat_steps": 5}, {"train_min_entropy": 0.1}, {"train_wandb_secret": "s"}, {"gpu_workers": 3})
    }
    assert len(keys) == 1
