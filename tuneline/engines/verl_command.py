"""From RunSpec to verl's settings, for verl 0.6.1 and 0.9."""

from __future__ import annotations

import math

from tuneline.config.engine_rules import layout_of, version_of
from tuneline.config.engine_settings import parse
from tuneline.config.spec import RunSpec
from tuneline.engines import scoring
from tuneline.engines.base import TrainingInputs
from tuneline.engines.overrides import Value, override

SCORING_FILE = "tuneline_scoring.py"
#: One more than the newest: verl deletes before it saves, so with 1 a broken save would leave nothing.
CHECKPOINTS_KEPT = 2
#: Processes of one node that drive conversations; verl splits a batch into that many equal parts.
AGENT_WORKERS = 8


def scoring_path(inputs: TrainingInputs) -> str:
    """Where the job finds the reward."""
    return f"{inputs.attempt_dir}/job/{SCORING_FILE}"


def build_argv(spec: RunSpec, inputs: TrainingInputs) -> tuple[str, ...]:
    """The command of one attempt."""
    extra = [f"{name}={value}" for name, value in parse(spec.train_extra)]
    return ("python3", "-m", "verl.trainer.main_ppo", *(override(name, value) for name, value in settings(spec, inputs).items()), *extra)


def settings(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    """verl's settings of one attempt, by name."""
    new = version_of(spec) != "0.6.1"
    return {
        **_data(spec, inputs),
        **_model(spec, inputs),
        **_actor(spec, new),
        **_kl(spec),
        **_rollout(spec, inputs, new),
        **_reward(inputs, new),
        **_trainer(spec, inputs, new),
    }


def _data(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    return {
        "data.train_files": f"{inputs.dataset_dir}/train.parquet",
        "data.val_files": f"{inputs.dataset_dir}/test.parquet",
        "data.train_batch_size": spec.train_batch_size // spec.train_group_size,
        "data.max_prompt_length": spec.train_prompt_tokens,
        "data.max_response_length": spec.train_response_tokens,
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "data.return_raw_chat": True,
        "data.seed": spec.train_seed,
    }


def _model(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    model: dict[str, Value] = {"actor_rollout_ref.model.path": inputs.base_dir}
    if spec.train_lora_rank:
        model |= {
            "actor_rollout_ref.model.lora_rank": spec.train_lora_rank,
            "actor_rollout_ref.model.lora_alpha": spec.train_lora_rank,
            # vLLM must read the base weights itself: only the adapters are sent to it.
            "actor_rollout_ref.rollout.load_format": "safetensors",
        }
    return model


def _actor(spec: RunSpec, new: bool) -> dict[str, Value]:
    layout = layout_of(spec)
    actor: dict[str, Value] = {
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.optim.lr": spec.train_learning_rate,
        "actor_rollout_ref.actor.use_dynamic_bsz": False,
        # verl counts prompts here and multiplies by rollout.n itself.
        "actor_rollout_ref.actor.ppo_mini_batch_size": layout.mini // spec.train_group_size,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": layout.micro,
        "actor_rollout_ref.actor.fsdp_config.param_offload": spec.train_offload,
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": spec.train_offload,
        "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra"],
        "algorithm.adv_estimator": "grpo",
    }
    if new:
        actor |= {
            "actor_rollout_ref.actor.fsdp_config.seed": spec.train_seed,
            "actor_rollout_ref.actor.data_loader_seed": spec.train_seed,
        }
    return actor


def _kl(spec: RunSpec) -> dict[str, Value]:
    """A KL term in the loss and the reference that it needs, or neither: verl ignores a coefficient without `use_kl_loss`."""
    kl: dict[str, Value] = {"algorithm.use_kl_in_reward": False, "actor_rollout_ref.actor.use_kl_loss": spec.train_kl_coef > 0}
    if spec.train_kl_coef > 0:
        kl |= {
            "actor_rollout_ref.actor.kl_loss_coef": spec.train_kl_coef,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": layout_of(spec).micro,
            "actor_rollout_ref.ref.fsdp_config.param_offload": spec.train_offload,
        }
    return kl


def _rollout(spec: RunSpec, inputs: TrainingInputs, new: bool) -> dict[str, Value]:
    agent = bool(spec.train_tools or spec.train_agent_loop)
    rollout: dict[str, Value] = {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": spec.train_group_size,
        "actor_rollout_ref.rollout.temperature": spec.train_temperature,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": spec.train_tensor_parallel,
        "actor_rollout_ref.rollout.gpu_memory_utilization": spec.train_generation_memory,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": layout_of(spec).micro,
        # 0.9 has no other mode; conversations need it in 0.6.1 too.
        "actor_rollout_ref.rollout.mode": "async" if new or agent else "sync",
        "actor_rollout_ref.rollout.agent.num_workers": math.gcd(AGENT_WORKERS, spec.train_batch_size),
    }
    if new:
        rollout["actor_rollout_ref.rollout.seed"] = spec.train_seed
    if agent:
        rollout |= {
            "actor_rollout_ref.rollout.multi_turn.enable": True,
            "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": spec.train_max_turns,
            "actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent",
        }
    if spec.train_tools:
        rollout["actor_rollout_ref.rollout.multi_turn.tool_config_path"] = f"{inputs.code_dir}/{spec.train_tools}"
    if spec.train_agent_loop:
        file, _, name = spec.train_agent_loop.rpartition(":")
        rollout |= {
            "actor_rollout_ref.rollout.agent.agent_loop_config_path": f"{inputs.code_dir}/{file}",
            "actor_rollout_ref.rollout.agent.default_agent_loop": name,
        }
    return rollout


def _reward(inputs: TrainingInputs, new: bool) -> dict[str, Value]:
    prefix = "reward.custom_reward_function" if new else "custom_reward_function"
    return {f"{prefix}.path": scoring_path(inputs), f"{prefix}.name": scoring.compute_score.__name__}


def _trainer(spec: RunSpec, inputs: TrainingInputs, new: bool) -> dict[str, Value]:
    layout = layout_of(spec)
    trainer: dict[str, Value] = {
        "trainer.nnodes": layout.nodes,
        "trainer.n_gpus_per_node": layout.gpus,
        "trainer.project_name": "tuneline",
        "trainer.experiment_name": inputs.job_name,
        "trainer.logger": ["console", "tensorboard", *(["wandb"] if spec.train_wandb_secret else [])],
        "trainer.total_training_steps": spec.train_steps,
        # The steps end the training; every pass over the data has at least one.
        "trainer.total_epochs": spec.train_steps,
        "trainer.val_before_train": True,
        "trainer.val_only": False,
        "trainer.test_freq": spec.train_save_every,
        "trainer.save_freq": spec.train_save_every,
        "trainer.max_actor_ckpt_to_keep": CHECKPOINTS_KEPT,
        "trainer.default_local_dir": inputs.attempt_dir,
        "trainer.resume_mode": "resume_path" if inputs.resume_from else "disable",
    }
    if inputs.resume_from:
        trainer["trainer.resume_from_path"] = inputs.resume_from.rstrip("/")
    if new:
        trainer |= {"trainer.use_v1": True, "trainer.v1.trainer_mode": "sync"}
    return trainer
