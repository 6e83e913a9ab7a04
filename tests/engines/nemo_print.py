"""Prints two steps of a short training with NeMo RL's own print statements, on invented values.

NEMO_RL_SRC names the copy. Its statements are executed one by one: the module itself needs GPUs' packages to be imported.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(os.environ["NEMO_RL_SRC"], "nemo_rl", "algorithms", "grpo.py").read_text(encoding="utf-8")
TREE = ast.parse(SOURCE)


class Config(dict[str, Any]):
    """A map whose entries are attributes too: v0.5.0 reads one way, later ones the other."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def function(name: str) -> ast.FunctionDef:
    return next(node for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef) and node.name == name)


def call(of: str, text: str) -> list[ast.stmt]:
    """The print statement of a function that holds `text`."""
    found = [
        node
        for node in ast.walk(function(of))
        if isinstance(node, ast.Expr) and text in (ast.get_source_segment(SOURCE, node) or "") and "print(" in ast.unparse(node)
    ]
    return found[:1]


def block(of: str, first: str, last: str) -> list[ast.stmt]:
    """The statements of a function from the one that prints `first` to the one that holds `last`."""
    for node in ast.walk(function(of)):
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(body, list):
                continue
            texts = [ast.get_source_segment(SOURCE, statement) or "" for statement in body]
            begin = next((at for at, text in enumerate(texts) if text.startswith("print(") and first in text), None)
            if begin is not None:
                end = next(at for at in range(begin, len(texts)) if last in texts[at])
                return body[begin : end + 1]
    raise AssertionError(f"NeMo RL has changed: nothing in {of} prints {first!r}")


def execute(statements: list[ast.stmt], names: dict[str, Any]) -> None:
    assert statements
    exec(compile(ast.Module(statements, []), "nemo_rl", "exec"), names)


def main() -> None:
    import numpy as np

    grpo = Config(use_dynamic_sampling=False, num_prompts_per_step=16, num_generations_per_prompt=32)
    names: dict[str, Any] = {
        "np": np,
        "master_config": Config(grpo=grpo, cluster=Config(num_nodes=2, gpus_per_node=8)),
        "dataloader": range(200),
        "max_num_steps": 2,
        "max_num_epochs": 1,
        "current_epoch": 0,
        "total_rewards": range(256),
    }
    execute(call("validate", "Starting validation at step"), names | {"step": 0})
    validated(names, 0.25)
    execute(call("grpo_train", "Epoch {current_epoch + 1}"), names)
    for step in (1, 2):
        execute(call("grpo_train", "Step {current_step + 1}"), names | {"current_step": step - 1})
        if step == 2:
            execute(call("validate", "Starting validation at step"), names | {"step": step})
            validated(names, 0.75)
            execute(call("grpo_train", "Saving checkpoint for step"), names | {"total_steps": step - 1})
        results = {"mean_gen_tokens_per_sample": 201.5}
        values = {
            "metrics": {"loss": -0.0123 * step, "gen_kl_error": 0.0004},
            "rewards": SimpleNamespace(numpy=lambda step=step: np.array([0.0, 0.5 * step])),
            "rollout_metrics": results,
            "metrics_logging_data": results,
            "timing_metrics": {"total_step_time": 61.5, "policy_training": 30.25, "generation": 20.5},
        }
        execute(block("grpo_train", "Training Results:", "sorted("), names | values)


def validated(names: dict[str, Any], accuracy: float) -> None:
    timing = {"timing_metrics": {"total_validation_time": 12.5}}
    statements = block("validate", "Validation Results:", "Total validation time")
    execute(statements, names | timing | {"accuracy": accuracy, "avg_length": 180.2})


if __name__ == "__main__":
    main()
