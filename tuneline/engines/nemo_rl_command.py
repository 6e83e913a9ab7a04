"""From RunSpec to NeMo RL's configuration, for v0.5.0 and v0.7."""

from __future__ import annotations

from tuneline.config.engine_rules import layout_of, version_of
from tuneline.config.engine_settings import parse
from tuneline.config.spec import RunSpec
from tuneline.engines.base import TrainingInputs
from tuneline.engines.overrides import Value, override

START_FILE = "tuneline_nemo_rl.py"
#: Where NeMo RL's images have its source: the entry point, the configurations, and `uv.lock` for its workers' environments.
HOME = "/opt/nemo-rl"
CHECKPOINTS_KEPT = 2
#: More validation rows than any test split has: the whole of it is scored.
ALL_ROWS = 1_048_576
#: Rows hold the bare question; this file of NeMo RL asks for an answer in `\boxed{}`, which its verifier reads.
PROMPT = "examples/prompts/cot.txt"
_BASE = "examples/configs/grpo_math_1B.yaml"
#: Part of a model's name and GPUs of a node, to the recipe that NeMo RL has for it: 8n8g-…tp8 for nodes of eight, not 8n4g.
RECIPES = {
    ("gemma-3-27b-it", 8): "examples/configs/recipes/llm/grpo-gemma3-27b-it-8n8g-fsdp2tp8-actckpt-long.yaml",
    ("gemma-3-27b-it", 4): "examples/configs/recipes/llm/grpo-gemma3-27b-it-8n4g-fsdp2tp4-actckpt-long.yaml",
}


def recipe_of(spec: RunSpec) -> str:
    """The configuration that this model and machine start from, relative to NeMo RL's source."""
    gpus = layout_of(spec).gpus
    return next((path for (model, size), path in RECIPES.items() if model in spec.model_id and size == gpus), _BASE)


def start_path(inputs: TrainingInputs) -> str:
    """Where the job finds its start."""
    return f"{inputs.attempt_dir}/job/{START_FILE}"


def build_argv(spec: RunSpec, inputs: TrainingInputs) -> tuple[str, ...]:
    """The command of one attempt."""
    start = ("python", start_path(inputs), inputs.engine_dir or HOME, inputs.attempt_dir, inputs.resume_from.rstrip("/"))
    extra = [f"{name}={value}" for name, value in parse(spec.train_extra)]
    overrides = [override(name, value) for name, value in settings(spec, inputs).items()]
    return (*start, "examples/run_grpo.py", "--config", recipe_of(spec), *overrides, *extra)


def settings(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    """NeMo RL's settings of one attempt, by name (`+` before one that its configuration does not have)."""
    new = version_of(spec) != "v0.5.0"
    return {
        **_grpo(spec, new),
        **_policy(spec, inputs),
        **_generation(spec),
        **(_data(inputs) if new else _data_of_v05(inputs)),
        "data.max_input_seq_length": spec.train_prompt_tokens,
        **_checkpoints(spec, inputs),
        **_logger(spec, inputs),
        "cluster.num_nodes": spec.gpu_nodes,
        "cluster.gpus_per_node": layout_of(spec).gpus,
    }


def _grpo(spec: RunSpec, new: bool) -> dict[str, Value]:
    grpo: dict[str, Value] = {
        "grpo.num_prompts_per_step": spec.train_batch_size // spec.train_group_size,
        "grpo.num_generations_per_prompt": spec.train_group_size,
        "grpo.max_num_steps": spec.train_steps,
        # The steps end the training; every pass over the data has at least one.
        "grpo.max_num_epochs": spec.train_steps,
        "grpo.val_at_start": True,
        "grpo.val_period": spec.train_save_every,
        "grpo.max_val_samples": ALL_ROWS,
        "grpo.seed": spec.train_seed,
        "loss_fn.reference_policy_kl_penalty": spec.train_kl_coef,
    }
    if new:
        grpo["grpo.val_at_end"] = True
        if not spec.train_kl_coef:
            grpo["+grpo.skip_reference_policy_logprobs_calculation"] = True
    return grpo


def _policy(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    layout = layout_of(spec)
    return {
        "policy.model_name": inputs.base_dir,
        "policy.tokenizer.name": inputs.base_dir,
        "policy.train_global_batch_size": layout.mini,
        "policy.train_micro_batch_size": layout.micro,
        "policy.logprob_batch_size": layout.micro,
        "policy.max_total_sequence_length": spec.train_prompt_tokens + spec.train_response_tokens,
        "policy.dtensor_cfg.enabled": True,
        # Its first worker saves distributed checkpoints that it resumes from and that convert reads; the second one saves sharded
        # safetensors by default, which its own converter cannot read.
        "policy.dtensor_cfg._v2": False,
        "policy.dtensor_cfg.activation_checkpointing": True,
        "policy.dtensor_cfg.tensor_parallel_size": spec.train_tensor_parallel,
        "policy.make_sequence_length_divisible_by": spec.train_tensor_parallel,
        "policy.sequence_packing.enabled": False,
        "policy.dynamic_batching.enabled": False,
        "policy.optimizer.kwargs.lr": spec.train_learning_rate,
    }


def _generation(spec: RunSpec) -> dict[str, Value]:
    layout = layout_of(spec)
    generation: dict[str, Value] = {
        "policy.generation.max_new_tokens": spec.train_response_tokens,
        "policy.generation.temperature": spec.train_temperature,
        "policy.generation.vllm_cfg.tensor_parallel_size": spec.train_tensor_parallel,
        "policy.generation.vllm_cfg.gpu_memory_utilization": spec.train_generation_memory,
        "policy.generation.vllm_cfg.max_model_len": spec.train_prompt_tokens + spec.train_response_tokens,
        "policy.generation.colocated.enabled": not layout.generation_nodes,
    }
    if layout.generation_nodes:
        generation |= {
            "policy.generation.colocated.resources.num_nodes": layout.generation_nodes,
            "policy.generation.colocated.resources.gpus_per_node": layout.gpus,
        }
    return generation


def _data_of_v05(inputs: TrainingInputs) -> dict[str, Value]:
    return {
        "data.dataset_name": "ResponseDataset",
        "+data.train_data_path": f"{inputs.dataset_dir}/train.jsonl",
        "+data.val_data_path": f"{inputs.dataset_dir}/test.jsonl",
        "data.prompt_file": PROMPT,
    }


def _data(inputs: TrainingInputs) -> dict[str, Value]:
    return {
        "data.train.dataset_name": "ResponseDataset",
        "+data.train.data_path": f"{inputs.dataset_dir}/train.jsonl",
        "data.train.split_validation_size": 0,
        "data.validation": {"dataset_name": "ResponseDataset", "data_path": f"{inputs.dataset_dir}/test.jsonl"},
        "data.default.prompt_file": PROMPT,
    }


def _checkpoints(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    return {
        "checkpointing.enabled": True,
        # The attempt's own: in a folder that another run wrote into, NeMo RL would resume from that run.
        "checkpointing.checkpoint_dir": inputs.attempt_dir,
        "checkpointing.save_period": spec.train_save_every,
        "checkpointing.metric_name": None,
        "checkpointing.keep_top_k": CHECKPOINTS_KEPT,
        "checkpointing.model_save_format": None,
    }


def _logger(spec: RunSpec, inputs: TrainingInputs) -> dict[str, Value]:
    wandb = bool(spec.train_wandb_secret)
    logger: dict[str, Value] = {
        "logger.log_dir": f"{inputs.attempt_dir}/tensorboard",
        "logger.tensorboard_enabled": True,
        "logger.wandb_enabled": wandb,
    }
    return logger | ({"logger.wandb.project": "tuneline", "logger.wandb.name": inputs.job_name} if wandb else {})
