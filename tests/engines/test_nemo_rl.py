"""Our arguments under NeMo RL's own configuration loader, and our rows before its verifier's own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.nemo import sources, version
from tests.engines.packages import ROOT, run
from tests.engines.specs import inputs, parameters
from tuneline.config.engine_rules import layout_of, version_of
from tuneline.config.engine_settings import recorded
from tuneline.config.recipes import load_recipe
from tuneline.config.spec import RunSpec
from tuneline.engines.nemo_rl_command import build_argv
from tuneline.engines.nemo_rl_data import line
from tuneline.tasks.adapters import ADAPTERS

SOURCES = pytest.mark.parametrize("source", sources(), ids=lambda source: getattr(source, "name", "none"))
ANSWER = "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18"
ROW = {"question": "Janet's ducks lay 16 eggs per day. How much does she make every day?", "answer": ANSWER}


def spec(source: Path, **changes: Any) -> RunSpec:
    """The tutorial's run, with its faults mended."""
    tutorial: dict[str, Any] = {
        "model_id": "google/gemma-3-27b-it",
        "train_engine": "nemo_rl",
        "train_engine_version": version(source),
        "train_batch_size": 512,
        "train_group_size": 32,
        "train_steps": 10,
        "train_save_every": 10,
        "train_generation_memory": 0.9,
        "train_generation_nodes": 1,
        "train_kl_coef": 0.01,
    }
    return RunSpec.build(parameters("lustre", **{**tutorial, **changes}))


def compose(source: Path, one: RunSpec, **changes: Any) -> Any:
    argv = build_argv(one, inputs(**changes))
    # Behind the start, the home, the attempt and the checkpoint stands what NeMo RL itself gets.
    assert argv[5:7] == ("examples/run_grpo.py", "--config")
    [config] = json.loads(run("nemo_rl", "nemo_probe.py", json.dumps([argv[7:]]), NEMO_RL_SRC=str(source)).splitlines()[-1])
    assert not isinstance(config, str), config
    return config


@SOURCES
def test_the_tutorial_s_run_composes(source: Path) -> None:
    one = spec(source)
    config = compose(source, one)
    assert config["cluster"]["num_nodes"] == 2
    assert config["cluster"]["gpus_per_node"] == 8
    assert config["policy"]["train_global_batch_size"] == 512
    assert config["policy"]["dtensor_cfg"]["tensor_parallel_size"] == 8
    assert config["policy"]["generation"]["colocated"] == {"enabled": False, "resources": {"num_nodes": 1, "gpus_per_node": 8}}
    assert config["checkpointing"]["model_save_format"] is None
    assert config["checkpointing"]["metric_name"] is None
    assert config["logger"]["tensorboard_enabled"] is True
    assert config["logger"]["wandb_enabled"] is False
    data = config["data"]
    train = data["train"]["data_path"] if version(source) != "v0.5.0" else data["train_data_path"]
    assert train == f"{inputs().dataset_dir}/train.jsonl"
    assert config["grpo"]["max_num_epochs"] >= config["grpo"]["max_num_steps"] == 10


@SOURCES
def test_every_way_to_run_composes(source: Path) -> None:
    """Generation where it trains, no KL, Weights & Biases, micro batches, further settings, a resume, nodes of four GPUs."""
    for changes in (
        {"train_generation_nodes": 0, "train_kl_coef": 0.0, "train_wandb_secret": "key"},
        {"train_micro_batch": 4, "train_mini_batch": 256, "train_extra": "policy.max_grad_norm=0.5 +policy.generation.vllm_kwargs.x=1"},
        {"model_id": "Qwen/Qwen2.5-7B-Instruct", "train_tensor_parallel": 2},
    ):
        one = spec(source, **changes)
        config = compose(source, one, resume_from="/data/checkpoints/k/run-a1/step_5")
        assert config["policy"]["train_micro_batch_size"] == config["policy"]["logprob_batch_size"] == layout_of(one).micro


@SOURCES
def test_recipes_compose(source: Path) -> None:
    recipes = [RunSpec.build(load_recipe(path)) for path in sorted((ROOT / "recipes").glob("nemo-rl-*.yaml"))]
    for one in recipes:
        if version_of(one) == version(source):
            compose(source, one)


@SOURCES
def test_the_recorded_settings_are_nemo_rl_s(source: Path) -> None:
    """Exactly those of a copy of that very version; a newer copy may have more."""
    found = set(run("nemo_rl", "record.py", VERSION=f"nemo_rl-{version(source)}", PRINT="1", NEMO_RL_SRC=str(source)).split())
    if source.name in ("v0.5.0", "v0.7.0"):
        assert found == recorded("nemo_rl", version(source))


def score(pairs: list[tuple[str, str]]) -> list[float]:
    scores: list[float] = json.loads(run("math-verify", "math_probe.py", json.dumps(pairs)).splitlines()[-1])
    return scores


def test_a_row_that_we_stage_is_scored_and_the_tutorial_s_is_not() -> None:
    staged = json.loads(line(ADAPTERS["gsm8k"](ROW, "train", 0)))
    right = ["She makes 9 * 2 = 18 a day.\n#### 18", "So the answer is \\boxed{18}."]
    wrong = ["#### 17", "I do not know."]
    assert score([(staged["output"], text) for text in right]) == [1.0, 1.0]
    assert score([(staged["output"], text) for text in wrong]) == [0.0, 0.0]
    # The tutorial hands over the whole rationale as the gold answer.
    assert score([(ROW["answer"], text) for text in right]) == [0.0, 0.0]


def test_golds_of_every_shape_that_gsm8k_has_are_scored() -> None:
    golds = ["18", "1,000", "-3", "0.5", "70000", "3/4", "125.50"]
    rows = [{"question": "q", "answer": f"so\n#### {gold}"} for gold in golds]
    staged = [json.loads(line(ADAPTERS["gsm8k"](row, "train", 0)))["output"] for row in rows]
    assert score([(gold, f"#### {shown}") for gold, shown in zip(staged, golds, strict=True)]) == [1.0] * len(golds)
