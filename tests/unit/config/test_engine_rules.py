"""Rules of the GPU engines: every message shows the arithmetic and values that work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.specs import CODE, parameters, spec
from tuneline.config.engine_rules import Layout, layout_of, version_of
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError

INVALID: list[tuple[dict[str, Any], list[str]]] = [
    ({"train_batch_size": 2056}, ["2056 = 128 x 16 + 8", "16 GPUs", "choose 2048 or 2064"]),
    ({"gpu_nodes": 3}, ["2048 = 85 x 24 + 8", "choose 2040 or 2064"]),
    ({"train_mini_batch": 768}, ["2048 = 2 x 768 + 512", "choose 512 or 1024"]),
    ({"train_mini_batch": 4096}, ["2048 = 0 x 4096 + 2048", "choose 2048"]),
    ({"train_mini_batch": 8}, ["train_mini_batch=8 does not divide evenly (8 = 0 x 16 + 8; choose 16)"]),
    ({"train_mini_batch": 4}, ["train_mini_batch=4 is no whole number of groups of train_group_size=8", "choose 8"]),
    ({"train_micro_batch": 48}, ["train_batch_size=2048 / 16 GPUs = 128 (128 = 2 x 48 + 32)", "choose 32 or 64"]),
    ({"train_micro_batch": 256}, ["choose 128"]),
    ({"train_mini_batch": 512, "train_micro_batch": 64}, ["train_mini_batch=512 / 16 GPUs = 32", "choose 32"]),
    ({"train_tensor_parallel": 3}, ["8 = 2 x 3 + 2", "choose 1, 2, 4, 8"]),
    ({"train_tensor_parallel": 16}, ["choose 1, 2, 4, 8"]),
    ({"train_generation_nodes": 1}, ["verl generates on the GPUs that train"]),
    ({"train_engine_version": "0.7.0"}, ["0.6.1, 0.9.1"]),
    ({"infra_platform": "local"}, ["needs GPU nodes", "train_engine=trl"]),
    ({"gpu_machine": ""}, ["a4-highgpu-8g"]),
    ({"train_tools": "tools.yaml", "train_max_turns": 2}, ["train_code_uri is ''"]),
    ({"train_tools": "../tools.yaml", "train_max_turns": 2, "train_code_uri": CODE}, ["must be a YAML file"]),
    ({"train_tools": "tools.yaml", "train_code_uri": CODE}, ["choose 2 or more"]),
    ({"train_agent_loop": "loops.yaml", "train_code_uri": CODE}, ["FILE.yaml:NAME"]),
    ({"train_max_turns": 3}, ["nobody answers the model"]),
    ({"train_lora_rank": 1024}, ["<= 512"]),
    ({"train_wandb_secret": "projects/p/secrets/x"}, ["never the key itself"]),
    ({"train_extra": "trainer.save_frequency=3"}, ["verl 0.6.1 has no such setting", "did you mean trainer.save_freq?"]),
    ({"train_extra": "use_kl_loss=True"}, ["did you mean actor_rollout_ref.actor.use_kl_loss?"]),
    ({"train_extra": "zzz.qqq=1"}, ["no setting has a name like it"]),
    ({"train_extra": "trainer.save_freq=3"}, ["is set by train_save_every"]),
    ({"train_extra": "trainer.default_local_dir=/x"}, ["is set by Tuneline"]),
    ({"train_extra": "data.shuffle=False data.shuffle=True"}, ["given twice"]),
    ({"train_extra": "+data.shuffle=False"}, ["leave out the '+'"]),
    ({"train_extra": "actor_rollout_ref.model.override_config.x=1"}, ["write +actor_rollout_ref.model.override_config.x=1"]),
    ({"train_extra": "data.shuffle"}, ["has no '='"]),
    ({"train_extra": "data.shuffle='x"}, ["No closing quotation"]),
    ({"train_extra": "a.b=$(id)"}, ["shell sign"]),
    ({"train_extra": "--config-dir=/x"}, ["is no name of a setting"]),
    ({"train_extra": "actor_rollout_ref.actor.strategy=megatron"}, ["Megatron backend is not supported"]),
    ({"train_extra": "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"}, ["Megatron backend is not supported"]),
    ({"train_engine": "nemo_rl", "train_extra": "policy.megatron_cfg.enabled=true"}, ["Megatron backend is not supported"]),
    ({"train_engine": "nemo_rl", "train_lora_rank": 8}, ["NeMo RL's adapters are not converted"]),
    ({"train_engine": "nemo_rl", "train_reward": "exact"}, ["math verifier"]),
    ({"train_engine": "nemo_rl", "train_generation_nodes": 2}, ["leaves 0 of gpu_nodes=2", "choose 0 to 1"]),
    ({"train_engine": "nemo_rl", "train_steps": 55, "train_save_every": 10}, ["55 = 5 x 10 + 5", "choose 50 or 60 steps, or v0.7.0"]),
    ({"train_engine": "nemo_rl", "train_micro_batch": 3}, ["2 replicas (16 GPUs / train_tensor_parallel=8) = 1024"]),
    ({"train_engine": "nemo_rl", "train_tools": "t.yaml"}, ["only verl calls tools"]),
    ({"train_engine": "trl", "train_lora_rank": 8, "train_tensor_parallel": 1}, ["train_engine=trl does not use it; leave it 0"]),
    ({"train_engine": "trl"}, ["train_tensor_parallel=8: train_engine=trl does not use it; leave it 1"]),
]


@pytest.mark.parametrize(("changes", "wanted"), INVALID)
def test_refused_with_the_arithmetic(changes: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.build(parameters(**changes))
    text = str(caught.value)
    assert [part for part in wanted if part not in text] == []


def test_arm_machines_need_a_verl_with_images_for_them() -> None:
    with pytest.raises(SpecError, match=r"images for a4x-highgpu-4g \(arm64\) from 0.9 on; choose 0.9.1"):
        RunSpec.build(parameters("a4x", train_engine_version="0.6.1"))


@pytest.mark.parametrize(
    ("system", "changes", "version"),
    [
        ("standard", {}, "0.6.1"),
        ("a4x", {}, "0.9.1"),
        ("standard", {"train_engine_version": "0.9.1"}, "0.9.1"),
        ("lustre", {"train_engine": "nemo_rl"}, "v0.5.0"),
    ],
)
def test_versions(system: str, changes: dict[str, Any], version: str) -> None:
    assert version_of(spec(system, **changes)) == version


@pytest.mark.parametrize(
    ("system", "changes", "layout"),
    [
        # 1,024 tokens: 16 completions a pass.
        ("standard", {}, Layout(8, 2, 0, 16, 16, 2048, 16)),
        ("standard", {"train_micro_batch": 64}, Layout(8, 2, 0, 16, 16, 2048, 64)),
        # 16,896 tokens do not fit one pass of 16,384: one completion.
        ("standard", {"train_response_tokens": 16384}, Layout(8, 2, 0, 16, 16, 2048, 1)),
        ("a4x", {"train_mini_batch": 512}, Layout(4, 4, 0, 16, 16, 512, 16)),
        ("lustre", {"train_engine": "nemo_rl", "train_batch_size": 512, "train_generation_nodes": 1}, Layout(8, 1, 1, 8, 1, 512, 16)),
    ],
)
def test_layout(system: str, changes: dict[str, Any], layout: Layout) -> None:
    assert layout_of(spec(system, **changes)) == layout


def test_a_text_among_numbers_is_converted_before_rules_read_it() -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.build({"train_steps": "many", "train_batch_size": "100"})
    assert len(caught.value.faults) == 2
