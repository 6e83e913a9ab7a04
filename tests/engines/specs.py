"""Parameters of verl and NeMo RL runs: the tutorials', and random ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.gke_specs import PLACE, PROVISIONINGS, SYSTEMS
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError
from tuneline.engines.base import TrainingInputs

#: A folder of user code that exists.
CODE = str(Path(__file__).parent)
TRAIN: dict[str, Any] = {
    **PLACE,
    **PROVISIONINGS["reservation"],
    "model_id": "Qwen/Qwen2.5-32B-Instruct",
    "data_id": "openai/gsm8k",
    "data_adapter": "gsm8k",
    "train_engine": "verl",
    "train_batch_size": 2048,
    "train_group_size": 8,
    "train_tensor_parallel": 8,
}


def parameters(system: str = "standard", **changes: Any) -> dict[str, Any]:
    tensor_parallel = {"train_tensor_parallel": 4} if system == "a4x" else {}
    return {**TRAIN, **SYSTEMS[system], **tensor_parallel, **changes}


def spec(system: str = "standard", **changes: Any) -> RunSpec:
    return RunSpec.build(parameters(system, **changes))


def inputs(**changes: Any) -> TrainingInputs:
    values = {
        "job_name": "tlgoldenruna-a1",
        "base_dir": "/data/models/Qwen--Qwen2.5-32B-Instruct@0123",
        "dataset_dir": "/data/datasets/0123",
        "code_dir": "",
        "attempt_dir": "/data/checkpoints/0123/tlgoldenruna-a1",
    }
    return TrainingInputs(**{**values, **changes})


def random_parameters(seed: int, version: str) -> dict[str, Any]:
    """A random verl run; about half of them break a rule."""
    draw = random.Random(f"{seed}/{version}")
    system = draw.choice(["standard", "autopilot", "a4x"] if version != "0.6.1" else ["standard", "autopilot"])
    group = draw.choice([2, 4, 8, 16])
    mini = draw.choice([0, 0, *(group * size for size in (8, 16, 24, 32, 64, 128))])
    agent = draw.random() < 0.3
    steps = draw.randint(1, 500)
    return parameters(
        system,
        gpu_nodes=draw.choice([1, 2, 2, 3, 4, 6]),
        train_engine_version=version,
        train_group_size=group,
        train_batch_size=group * draw.choice([16, 32, 48, 64, 96, 128, 256]),
        train_mini_batch=mini,
        train_micro_batch=draw.choice([0, 0, 1, 2, 3, 4, 8, 16, 64]),
        train_tensor_parallel=draw.choice([1, 2, 4, 8]) if system != "a4x" else draw.choice([1, 2, 4]),
        train_generation_memory=draw.choice([0.3, 0.55, 0.9]),
        train_offload=draw.random() < 0.5,
        train_lora_rank=draw.choice([0, 0, 8, 32, 320, 512]),
        train_kl_coef=draw.choice([0.0, 0.0, 0.001, 0.04]),
        train_prompt_tokens=draw.choice([64, 512, 4096]),
        train_response_tokens=draw.choice([128, 512, 8192]),
        train_temperature=draw.choice([0.6, 1.0]),
        train_learning_rate=draw.choice([1e-6, 1e-5, 3e-7]),
        train_steps=steps,
        train_save_every=draw.randint(1, steps),
        train_seed=draw.randint(0, 2**31 - 1),
        train_tools="tools.yaml" if agent else "",
        train_max_turns=draw.randint(2, 8) if agent else 1,
        train_code_uri=CODE if agent else "",
        train_wandb_secret=draw.choice(["", "wandb-key"]),
        train_extra=draw.choice(["", "actor_rollout_ref.actor.clip_ratio_high=0.28 +actor_rollout_ref.model.override_config.attn=sdpa"]),
    )


def verdict(values: dict[str, Any]) -> tuple[RunSpec, tuple[str, ...]]:
    """The spec of these parameters whether they fit or not, and the faults."""
    try:
        return RunSpec.build(values), ()
    except SpecError as error:
        return RunSpec(**values), error.faults
