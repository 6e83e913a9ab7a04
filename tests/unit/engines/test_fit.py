"""GPU memory before money: models whose size is known, and what fits where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.specs import parameters
from tuneline.config.recipes import load_recipe
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError, StagingError
from tuneline.engines.fit import GB, estimate, faults, require
from tuneline.engines.model_shape import shape_of

#: The sizes in each model's config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "meta-llama/Llama-3.3-70B-Instruct": {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
    },
    "google/gemma-3-27b-it": {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208,
        },
        "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
    },
    "Qwen/Qwen2.5-32B-Instruct": {
        "model_type": "qwen2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "billions", "kv_bytes"),
    [
        ("Qwen/Qwen3-30B-A3B", 30.53, 98304),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.55, 327680),
        ("google/gemma-3-27b-it", 27.43, 507904),
        ("Qwen/Qwen2.5-32B-Instruct", 32.76, 262144),
    ],
)
def test_parameters_are_those_of_the_model_card(model: str, billions: float, kv_bytes: int) -> None:
    shape = shape_of(CONFIGS[model])
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert shape.kv_bytes == kv_bytes


def spec(model: str, machine: str, nodes: int, **changes: Any) -> RunSpec:
    kind = "a4x" if machine.startswith("a4x") else "standard"
    tensor_parallel = 4 if kind == "a4x" else 8
    values = {
        "model_id": model, "gpu_machine": machine, "infra_cluster_kind": kind, "gpu_nodes": nodes, "train_batch_size": 2304,
        "train_tensor_parallel": tensor_parallel,
    }  # fmt: skip
    return RunSpec.build(parameters(**{**values, **changes}))


TABLE: list[tuple[str, str, int, dict[str, Any], str]] = [
    # model, machine, nodes, changes, the phase that does not fit
    ("Qwen/Qwen2.5-32B-Instruct", "a4-highgpu-8g", 2, {}, ""),
    ("Qwen/Qwen2.5-32B-Instruct", "a3-ultragpu-8g", 2, {}, ""),
    ("Qwen/Qwen2.5-32B-Instruct", "a4x-highgpu-4g", 4, {}, ""),
    # The tutorial's 64 completions a pass, on the machine of the tutorial and on the smaller one.
    ("Qwen/Qwen2.5-32B-Instruct", "a4-highgpu-8g", 2, {"train_batch_size": 2048, "train_micro_batch": 64}, ""),
    ("Qwen/Qwen2.5-32B-Instruct", "a3-ultragpu-8g", 2, {"train_batch_size": 2048, "train_micro_batch": 64}, "update"),
    ("Qwen/Qwen3-30B-A3B", "a3-ultragpu-8g", 2, {}, ""),
    ("Qwen/Qwen3-30B-A3B", "a3-ultragpu-8g", 1, {}, ""),
    ("Qwen/Qwen3-30B-A3B", "a3-ultragpu-8g", 1, {"train_generation_memory": 0.8}, "generate"),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 1, {}, "generate update"),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 1, {"train_offload": True}, "update"),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 1, {"train_lora_rank": 32}, ""),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 2, {"train_offload": True}, ""),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 2, {}, "generate"),
    ("meta-llama/Llama-3.3-70B-Instruct", "a4-highgpu-8g", 4, {}, ""),
    ("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 4, {"train_tensor_parallel": 1, "train_generation_memory": 0.5}, "inside vLLM"),
    ("google/gemma-3-27b-it", "a3-ultragpu-8g", 2, {"train_engine": "nemo_rl", "train_generation_nodes": 1, "train_steps": 50}, ""),
    ("google/gemma-3-27b-it", "a3-ultragpu-8g", 1, {"train_engine": "nemo_rl", "train_steps": 50}, ""),
    ("google/gemma-3-27b-it", "a3-ultragpu-8g", 1, {}, ""),
]


@pytest.mark.parametrize(("model", "machine", "nodes", "changes", "phases"), TABLE)
def test_what_fits_where(model: str, machine: str, nodes: int, changes: dict[str, Any], phases: str) -> None:
    needs = estimate(spec(model, machine, nodes, **changes), CONFIGS[model])
    assert " ".join(need.phase for need in needs if not need.fits) == phases, "\n".join(map(str, needs))


def test_a_70b_on_one_node_of_h200_is_refused_with_the_sum_and_a_way_out() -> None:
    one = spec("meta-llama/Llama-3.3-70B-Instruct", "a3-ultragpu-8g", 1)
    with pytest.raises(SpecError) as caught:
        require(one, CONFIGS[one.model_id])
    text = str(caught.value)
    assert "weights, gradients, optimizer 141.1 + " in text
    assert "GB of 133.9 GB" in text
    assert "gpu_nodes=2, or train_lora_rank=32" in text


@pytest.mark.parametrize(("model", "machine", "nodes", "changes", "phases"), [row for row in TABLE if row[4]])
def test_the_way_out_fits(model: str, machine: str, nodes: int, changes: dict[str, Any], phases: str) -> None:
    one = spec(model, machine, nodes, **changes)
    for fault in faults(one, CONFIGS[model]):
        for choice in fault.rpartition("choose ")[2].split(", or "):
            name, _, value = choice.partition("=")
            changed = RunSpec.build({**one.model_dump(), name: value})
            left = [other for other in faults(changed, CONFIGS[model]) if other.split(": ")[1] == fault.split(": ")[1]]
            assert left == []


def test_an_estimate_never_falls_with_a_larger_pass() -> None:
    totals = [
        estimate(spec("Qwen/Qwen2.5-32B-Instruct", "a4-highgpu-8g", 2, train_micro_batch=size), CONFIGS["Qwen/Qwen2.5-32B-Instruct"])[
            2
        ].total
        for size in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)
    assert totals[0] > 16 * 32.7 * GB / 16


def test_a_config_without_sizes_is_refused() -> None:
    with pytest.raises(StagingError, match="does not say how large"):
        shape_of({"model_type": "clip"})


@pytest.mark.parametrize("path", sorted((Path(__file__).resolve().parents[3] / "recipes").glob("*-gke-*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_fits(path: Path) -> None:
    one = RunSpec.build(load_recipe(path))
    if one.gpu_machine:
        assert faults(one, CONFIGS[one.model_id]) == []
