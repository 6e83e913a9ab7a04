"""Whether a training fits into GPU memory, estimated before GPUs are bought.

Two phases alternate on a GPU. All figures are bytes of one GPU; P parameters, W GPUs that train, T tokens in one pass.

generate   part x memory (vLLM takes that much: weights 2P/tensor_parallel, keys and values, 2 GB of its own)
           + what of the trained model stays: verl 12P/W (fp32 weights 4, Adam 8), nothing with offload; NeMo RL nothing
update     16P/W (fp32 weights 4, gradients 4, Adam moments 8)       Rajbhandari et al., ZeRO, 2020, section 3.1, with fp32 weights
           LoRA: 4P/W + 16 x adapters/W; a reference of verl 0.9: 2P/W
           + 2 layers gathered in bfloat16 (the one in use, the next one)
           + 2 x layers x hidden x T (inputs kept by gradient checkpointing) + one layer recomputed: T x (34 hidden + 6 intermediate)
                                                                      Korthikanti et al., Reducing Activation Recomputation, 2022, eq. 2, 5
           + logits: vocabulary x T x 6 in verl (bfloat16, its gradient, the answer's part; dp_actor.py), x 10 in NeMo RL (fp32 copy)
Of a GPU's memory 5 % stay free: CUDA context, NCCL buffers, fragmentation.

verl 0.6.1 keeps the reference in CPU memory (fsdp_workers.py: CPUOffloadPolicy); NeMo RL swaps it in from CPU memory. Fully sharded:
verl over all GPUs; NeMo RL over all that train, its logits and recomputed layer divided by tensor_parallel as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuneline.config.engine_rules import layout_of, version_of
from tuneline.config.machines import MACHINES
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError
from tuneline.engines.model_shape import Shape, shape_of

GB = 10**9
FREE = 0.05
VLLM_OWN = 2 * GB
_NAMES = {
    "weights": "weights of the generating copy",
    "sequence": "keys and values of one answer",
    "own": "vLLM's own",
    "held": "trained model that stays",
    "generating": "vLLM",
    "states": "weights, gradients, optimizer",
    "reference": "reference",
    "gathered": "gathered layers",
    "activations": "activations",
    "logits": "logits",
}


@dataclass(frozen=True)
class Need:
    """What a GPU must hold in one phase, and what it has.

    Attributes:
        parts: Name to bytes.
    """

    phase: str
    parts: Mapping[str, float]
    has: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.has

    def __str__(self) -> str:
        parts = " + ".join(f"{_NAMES[name]} {size / GB:.1f}" for name, size in self.parts.items() if size)
        return f"{self.phase}: {parts} = {self.total / GB:.1f} GB of {self.has / GB:.1f} GB"


def estimate(spec: RunSpec, config: Mapping[str, Any]) -> list[Need]:
    """What one GPU must hold in each phase of a valid verl or NeMo RL run.

    Args:
        config: The base model's `config.json`.
    """
    shape, memory = shape_of(config), MACHINES[spec.gpu_machine].gpu_memory_gib * GB
    part = spec.train_generation_memory * memory
    inside = Need(
        "inside vLLM",
        {
            "weights": 2 * shape.parameters / spec.train_tensor_parallel,
            "sequence": _sequence(spec, shape),
            "own": VLLM_OWN,
        },
        part,
    )
    usable = (1 - FREE) * memory
    return [
        inside,
        Need("generate", {"generating": part, "held": _held(spec, shape)}, usable),
        Need("update", _update(spec, shape), usable),
    ]


def _sequence(spec: RunSpec, shape: Shape) -> float:
    tokens = spec.train_prompt_tokens + spec.train_response_tokens
    return tokens * shape.kv_bytes / min(spec.train_tensor_parallel, shape.kv_heads)


def _adapters(spec: RunSpec, shape: Shape) -> int:
    return spec.train_lora_rank * shape.linear_width


def _held(spec: RunSpec, shape: Shape) -> float:
    if spec.train_engine == "nemo_rl" or spec.train_offload:
        return 0
    world = layout_of(spec).world
    return (4 * shape.parameters + (12 * _adapters(spec, shape) if spec.train_lora_rank else 8 * shape.parameters)) / world


def _update(spec: RunSpec, shape: Shape) -> dict[str, float]:
    layout = layout_of(spec)
    tokens = layout.micro * (spec.train_prompt_tokens + spec.train_response_tokens)
    split = spec.train_tensor_parallel if spec.train_engine == "nemo_rl" else 1
    states = 4 * shape.parameters + 16 * _adapters(spec, shape) if spec.train_lora_rank else 16 * shape.parameters
    reference = spec.train_kl_coef > 0 and spec.train_engine == "verl" and version_of(spec) != "0.6.1" and not spec.train_lora_rank
    return {
        "states": states / layout.world,
        "reference": 2 * shape.parameters / layout.world if reference and not spec.train_offload else 0,
        "gathered": 2 * 2 * shape.largest_layer / split,
        "activations": tokens * (2 * shape.layers * shape.hidden + (34 * shape.hidden + 6 * shape.intermediate) / split),
        "logits": (10 if spec.train_engine == "nemo_rl" else 6) * shape.vocab * tokens / split,
    }


def faults(spec: RunSpec, config: Mapping[str, Any]) -> list[str]:
    """What does not fit, with the sum and what would help; empty where everything fits."""
    found = []
    for need in estimate(spec, config):
        if not need.fits:
            found.append(f"{spec.model_id} does not fit {spec.gpu_nodes} x {spec.gpu_machine}: {need}; {_help(spec, config, need)}")
    return found


def _help(spec: RunSpec, config: Mapping[str, Any], need: Need) -> str:
    """Changes of one parameter with which this phase fits."""
    tries: list[tuple[str, Any]] = []
    if need.phase == "inside vLLM":
        tries += [("train_tensor_parallel", size) for size in range(spec.train_tensor_parallel + 1, layout_of(spec).gpus + 1)]
        tries += [("train_generation_memory", part / 100) for part in range(int(spec.train_generation_memory * 100) + 5, 96, 5)]
    else:
        tries += [("gpu_nodes", nodes) for nodes in range(spec.gpu_nodes + 1, spec.gpu_nodes * 8 + 1)]
    if need.phase == "generate":
        tries += [("train_offload", True)] if spec.train_engine == "verl" else []
        tries += [("train_generation_memory", part / 100) for part in range(int(spec.train_generation_memory * 100), 9, -5)]
    if need.phase == "update":
        tries += [("train_lora_rank", 32)] if spec.train_engine == "verl" and not spec.train_lora_rank else []
        micro = layout_of(spec).micro
        tries += [("train_micro_batch", size) for size in range(micro - 1, 0, -1) if micro % size == 0]
    helps: dict[str, Any] = {}
    for name, value in tries:
        if name not in helps and _would_fit(spec, config, need.phase, name, value):
            helps[name] = value
    return "choose " + ", or ".join(f"{name}={value}" for name, value in helps.items()) if helps else "choose a smaller model"


def _would_fit(spec: RunSpec, config: Mapping[str, Any], phase: str, name: str, value: Any) -> bool:
    try:
        changed = RunSpec.build({**spec.model_dump(), name: value})
    except SpecError:
        return False
    return next(need for need in estimate(changed, config) if need.phase == phase).fits


def require(spec: RunSpec, config: Mapping[str, Any]) -> None:
    """Refuse a run that cannot fit.

    Raises:
        SpecError: With every phase that does not.
    """
    if found := faults(spec, config):
        raise SpecError(found)
