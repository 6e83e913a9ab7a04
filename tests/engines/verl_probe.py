"""Runs with verl on the path: composes argument lists under verl's own configuration and lets its own checks judge them.

Standard input: a JSON list of argument lists. Standard output, last line: a JSON list with '' or the refusal of each.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, get_args

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config

VERL = Path(verl.__file__).parent


def judge(overrides: list[str]) -> str:
    """'' where verl takes these overrides, else the message with which it refuses them."""
    try:
        config = compose("ppo_trainer", overrides=overrides)
        reference = bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(config, use_reference_policy=reference, use_critic=critic_needed(config))
        omega_conf_to_dataclass(config.algorithm)
        OmegaConf.resolve(config)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        batches(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def critic_needed(config: Any) -> bool:
    from verl.trainer.ppo.utils import need_critic

    return bool(need_critic(config))


def without_vllm() -> None:
    """0.9 asks vLLM's module for the largest LoRA rank: its own function, without vLLM."""
    path = "workers/rollout/vllm_rollout/utils.py"
    if "def get_vllm_max_lora_rank(" not in (VERL / path).read_text(encoding="utf-8"):
        return
    package, module = ModuleType("verl.workers.rollout.vllm_rollout"), ModuleType("verl.workers.rollout.vllm_rollout.utils")
    names: dict[str, Any] = {"Literal": Literal, "get_args": get_args}
    execute(statement(path, ast.FunctionDef, "def get_vllm_max_lora_rank("), names)
    module.get_vllm_max_lora_rank = names["get_vllm_max_lora_rank"]  # type: ignore[attr-defined]
    sys.modules |= {package.__name__: package, module.__name__: module}


def batches(config: Any) -> None:
    """What verl asserts in its workers, minutes after the start: its own statements, executed without GPUs."""
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    rollout = config.actor_rollout_ref.rollout
    infer_world_size = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    worker = SimpleNamespace(
        config=config.actor_rollout_ref,
        world_size=world,
        device_mesh=SimpleNamespace(size=lambda: world),
        ulysses_sequence_parallel_size=1,
        _is_actor=True,
        engine=SimpleNamespace(get_data_parallel_size=lambda: world),
    )
    new = not (VERL / "workers" / "fsdp_workers.py").exists()
    module = "workers/engine_workers.py" if new else "workers/fsdp_workers.py"
    execute(statement(module, ast.Assert, "rollout world_size"), {"self": worker, "infer_world_size": infer_world_size})
    if not new:
        execute(statement(module, ast.If, "self.config.actor.ppo_mini_batch_size *= self.config.rollout.n"), {"self": worker})
        return
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine.utils import prepare_micro_batches

    actor = config.actor_rollout_ref.actor
    mini = actor.ppo_mini_batch_size * rollout.n
    execute(statement(module, ast.Assert, "Got {mini_batch_size=}"), {"self": worker, "mini_batch_size": mini})
    share = mini // world
    data = TensorDict({"x": torch.zeros(share, 1)}, batch_size=[share])
    for piece in tu.make_iterator(data, mini_batch_size=share, epochs=1):
        tu.assign_non_tensor(piece, use_dynamic_bsz=False, micro_batch_size_per_gpu=actor.ppo_micro_batch_size_per_gpu)
        prepare_micro_batches(piece)


@cache
def statement(module: str, kind: type[ast.stmt], text: str) -> ast.stmt:
    """The innermost statement of this kind in a module of verl whose source holds `text`."""
    source = (VERL / module).read_text(encoding="utf-8")
    texts = {node: ast.get_source_segment(source, node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kind)}
    found = [node for node, segment in texts.items() if text in segment]
    assert found, f"verl has changed: no {kind.__name__} with {text!r} in {module}"
    return min(found, key=lambda node: len(texts[node]))


def execute(node: ast.stmt, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), "verl", "exec"), names)


if __name__ == "__main__":
    without_vllm()
    with initialize_config_dir(config_dir=str(VERL / "trainer" / "config"), version_base=None):
        print(json.dumps([judge(overrides) for overrides in json.load(sys.stdin)]))
