"""`train_extra`: settings of verl or NeMo RL by their own names, each checked against the recorded names of that version."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuneline.config.spec import RunSpec

Fault = tuple[tuple[str, ...], str]

#: `<engine>-<version>.txt`: one setting a line, as `make record-engine` writes them; `NAME.*` is a map that takes any name.
RECORDED = Path(__file__).resolve().parents[1] / "engines" / "keys"
#: Settings that Tuneline sets, and the parameter that changes them ('' for those that the run's own bookkeeping needs).
OWNED = {
    "verl": {
        "actor_rollout_ref.actor.checkpoint.save_contents": "",
        "actor_rollout_ref.actor.data_loader_seed": "train_seed",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "train_offload",
        "actor_rollout_ref.actor.fsdp_config.param_offload": "train_offload",
        "actor_rollout_ref.actor.fsdp_config.seed": "train_seed",
        "actor_rollout_ref.actor.kl_loss_coef": "train_kl_coef",
        "actor_rollout_ref.actor.optim.lr": "train_learning_rate",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "train_micro_batch",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "train_mini_batch",
        "actor_rollout_ref.actor.strategy": "",
        "actor_rollout_ref.actor.use_dynamic_bsz": "",
        "actor_rollout_ref.actor.use_kl_loss": "train_kl_coef",
        "actor_rollout_ref.model.lora_alpha": "train_lora_rank",
        "actor_rollout_ref.model.lora_rank": "train_lora_rank",
        "actor_rollout_ref.model.path": "model_id",
        "actor_rollout_ref.ref.fsdp_config.param_offload": "train_offload",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "train_micro_batch",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": "train_agent_loop",
        "actor_rollout_ref.rollout.agent.default_agent_loop": "train_agent_loop",
        "actor_rollout_ref.rollout.agent.num_workers": "",
        "actor_rollout_ref.rollout.gpu_memory_utilization": "train_generation_memory",
        "actor_rollout_ref.rollout.load_format": "",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "train_micro_batch",
        "actor_rollout_ref.rollout.mode": "",
        "actor_rollout_ref.rollout.multi_turn.enable": "train_tools",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "train_max_turns",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": "train_tools",
        "actor_rollout_ref.rollout.n": "train_group_size",
        "actor_rollout_ref.rollout.name": "",
        "actor_rollout_ref.rollout.seed": "train_seed",
        "actor_rollout_ref.rollout.temperature": "train_temperature",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": "train_tensor_parallel",
        "algorithm.adv_estimator": "",
        "algorithm.use_kl_in_reward": "train_kl_coef",
        "custom_reward_function.name": "train_reward",
        "custom_reward_function.path": "train_reward",
        "data.filter_overlong_prompts": "",
        "data.max_prompt_length": "train_prompt_tokens",
        "data.max_response_length": "train_response_tokens",
        "data.return_raw_chat": "",
        "data.seed": "train_seed",
        "data.train_batch_size": "train_batch_size",
        "data.train_files": "data_id",
        "data.truncation": "",
        "data.val_files": "data_id",
        "reward.custom_reward_function.name": "train_reward",
        "reward.custom_reward_function.path": "train_reward",
        "trainer.default_local_dir": "",
        "trainer.experiment_name": "",
        "trainer.logger": "train_wandb_secret",
        "trainer.max_actor_ckpt_to_keep": "",
        "trainer.n_gpus_per_node": "gpu_machine",
        "trainer.nnodes": "gpu_nodes",
        "trainer.project_name": "",
        "trainer.resume_from_path": "",
        "trainer.resume_mode": "",
        "trainer.save_freq": "train_save_every",
        "trainer.test_freq": "train_save_every",
        "trainer.total_epochs": "train_steps",
        "trainer.total_training_steps": "train_steps",
        "trainer.use_v1": "",
        "trainer.v1.trainer_mode": "",
        "trainer.val_before_train": "",
        "trainer.val_only": "",
    },
    "nemo_rl": {
        "checkpointing.checkpoint_dir": "",
        "checkpointing.enabled": "",
        "checkpointing.keep_top_k": "",
        "checkpointing.metric_name": "",
        "checkpointing.model_save_format": "",
        "checkpointing.save_period": "train_save_every",
        "cluster.gpus_per_node": "gpu_machine",
        "cluster.num_nodes": "gpu_nodes",
        "data.dataset_name": "data_id",
        "data.default.prompt_file": "",
        "data.max_input_seq_length": "train_prompt_tokens",
        "data.prompt_file": "",
        "data.train": "data_id",
        "data.train_data_path": "data_id",
        "data.val_data_path": "data_id",
        "data.validation": "data_id",
        "grpo.max_num_epochs": "train_steps",
        "grpo.max_num_steps": "train_steps",
        "grpo.max_val_samples": "",
        "grpo.num_generations_per_prompt": "train_group_size",
        "grpo.num_prompts_per_step": "train_batch_size",
        "grpo.seed": "train_seed",
        "grpo.skip_reference_policy_logprobs_calculation": "train_kl_coef",
        "grpo.val_at_end": "",
        "grpo.val_at_start": "",
        "grpo.val_period": "train_save_every",
        "logger.log_dir": "",
        "logger.tensorboard_enabled": "",
        "logger.wandb.name": "",
        "logger.wandb.project": "",
        "logger.wandb_enabled": "train_wandb_secret",
        "loss_fn.reference_policy_kl_penalty": "train_kl_coef",
        "policy.dtensor_cfg._v2": "",
        "policy.dtensor_cfg.activation_checkpointing": "",
        "policy.dtensor_cfg.enabled": "",
        "policy.dtensor_cfg.tensor_parallel_size": "train_tensor_parallel",
        "policy.dynamic_batching.enabled": "",
        "policy.generation.colocated.enabled": "train_generation_nodes",
        "policy.generation.colocated.resources.gpus_per_node": "train_generation_nodes",
        "policy.generation.colocated.resources.num_nodes": "train_generation_nodes",
        "policy.generation.max_new_tokens": "train_response_tokens",
        "policy.generation.temperature": "train_temperature",
        "policy.generation.vllm_cfg.gpu_memory_utilization": "train_generation_memory",
        "policy.generation.vllm_cfg.max_model_len": "train_response_tokens",
        "policy.generation.vllm_cfg.tensor_parallel_size": "train_tensor_parallel",
        "policy.logprob_batch_size": "train_micro_batch",
        "policy.make_sequence_length_divisible_by": "train_tensor_parallel",
        "policy.max_total_sequence_length": "train_response_tokens",
        "policy.model_name": "model_id",
        "policy.optimizer.kwargs.lr": "train_learning_rate",
        "policy.sequence_packing.enabled": "",
        "policy.tokenizer.name": "model_id",
        "policy.train_global_batch_size": "train_mini_batch",
        "policy.train_micro_batch_size": "train_micro_batch",
    },
}
_MEGATRON = re.compile(r"megatron|mcore", re.IGNORECASE)
_KEY = re.compile(r"\+{0,2}(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)")
_VALUE = re.compile(r"[^\s$`\\;|&<>]*")


def parse(text: str) -> list[tuple[str, str]]:
    """The names and values in `train_extra`, in order; a value with spaces stands in quotes.

    Raises:
        ValueError: A quote is not closed, or a part has no `=`.
    """
    pairs = []
    for part in shlex.split(text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} has no '='")
        pairs.append((name, value))
    return pairs


@cache
def recorded(engine: str, version: str) -> frozenset[str]:
    """The names of a version's settings; empty where none are recorded."""
    path = RECORDED / f"{engine}-{version}.txt"
    return frozenset(path.read_text(encoding="utf-8").split()) if path.is_file() else frozenset()


def check(spec: RunSpec, version: str) -> Iterator[Fault]:
    """Every fault of `train_extra`."""
    names = ("train_extra", "train_engine", "train_engine_version", "gpu_machine")
    try:
        pairs = parse(spec.train_extra)
    except ValueError as error:
        yield (names, f"train_extra: {error}; write KEY=VALUE, separated by spaces")
        return
    seen: set[str] = set()
    for name, value in pairs:
        if fault := _fault(spec.train_engine, version, name, value, seen):
            yield (names, f"train_extra: {fault}")
        seen.add(name.lstrip("+"))


def _fault(engine: str, version: str, name: str, value: str, seen: set[str]) -> str:
    found = _KEY.fullmatch(name)
    if not found:
        return f"{name!r} is no name of a setting"
    key, known = found["name"], recorded(engine, version)
    if _MEGATRON.search(key) or (key in ("model_engine", "actor_rollout_ref.actor.strategy") and _MEGATRON.search(value)):
        return f"{key}={value}: the Megatron backend is not supported (its checkpoints cannot be converted); both engines train with FSDP"
    if key in seen:
        return f"{key} is given twice"
    if owned := next((name for name in (key, *_parents(key)) if name in OWNED[engine]), None):
        owner = OWNED[engine][owned]
        return f"{owned} is set by {owner}" if owner else f"{owned} is set by Tuneline, which relies on it"
    if not _VALUE.fullmatch(value):
        return f"{key}={value!r}: a value may hold no space, $, quote or shell sign"
    open_map = any(f"{parent}.*" in known for parent in _parents(key))
    if known and key not in known and not open_map:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6) or _same_ending(key, known)
        hint = f"did you mean {near[0]}?" if near else "no setting has a name like it"
        return f"{key}: {engine} {version} has no such setting; {hint}"
    if name.startswith("+") and not open_map:
        return f"{name}: leave out the '+'; {key} is there"
    if open_map and not name.startswith("+"):
        return f"{key} is new in an open map; write +{key}={value}"
    return ""


def _parents(key: str) -> Iterator[str]:
    parts = key.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])


def _same_ending(key: str, known: frozenset[str]) -> list[str]:
    last = key.rpartition(".")[2]
    return sorted(name for name in known if name.rpartition(".")[2] == last)[:1]
