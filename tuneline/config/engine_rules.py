"""Rules of the GPU engines, verl and NeMo RL: batches, GPUs, versions, user code. Each message shows the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneline.config import engine_settings
from tuneline.config.machines import MACHINES

if TYPE_CHECKING:
    from tuneline.config.spec import RunSpec

Fault = tuple[tuple[str, ...], str]

#: Versions whose settings are recorded in engines/keys; the first is taken where none is named.
VERSIONS = {"verl": ("0.6.1", "0.9.1"), "nemo_rl": ("v0.5.0", "v0.7.0")}
#: A4X needs CUDA and vLLM builds for arm64, which verl's images have from 0.9 on.
A4X_VERL = "0.9.1"
#: Tokens (prompt and longest answer) that one pass of a GPU takes where train_micro_batch is 0.
PASS_TOKENS = 16_384
_LOOP = re.compile(r"[\w./-]+\.ya?ml:[A-Za-z_]\w*")
_FILE = re.compile(r"[\w-][\w./-]*\.ya?ml")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass(frozen=True)
class Layout:
    """How a run's GPUs and completions divide.

    Attributes:
        gpus: GPUs of a node.
        nodes, generation_nodes: Nodes that train, and nodes that only generate.
        world: GPUs that train.
        replicas: Copies of the model that train side by side: completions are divided over them.
        mini: Completions per optimizer update.
        micro: Completions in one pass of a replica; divides what a replica has of an update.
    """

    gpus: int
    nodes: int
    generation_nodes: int
    world: int
    replicas: int
    mini: int
    micro: int


def version_of(spec: RunSpec) -> str:
    """The engine's version: the one that is named, else the default of engine and machine; '' for trl."""
    if spec.train_engine == "trl":
        return ""
    if spec.train_engine_version:
        return spec.train_engine_version
    machine = MACHINES.get(spec.gpu_machine)
    return A4X_VERL if spec.train_engine == "verl" and machine and machine.cpu_arch == "arm64" else VERSIONS[spec.train_engine][0]


def layout_of(spec: RunSpec) -> Layout:
    """The division of GPUs and completions of a valid GPU run; a value that does not divide is rounded down, never below 1."""
    gpus = MACHINES[spec.gpu_machine].gpus
    nodes = max(spec.gpu_nodes - spec.train_generation_nodes, 1)
    world = nodes * gpus
    # verl shards weights over all GPUs and gives each its own completions; NeMo RL also divides each copy by tensors.
    replicas = world if spec.train_engine == "verl" else max(world // spec.train_tensor_parallel, 1)
    mini = spec.train_mini_batch or spec.train_batch_size
    share = max(mini // replicas, 1)
    micro = spec.train_micro_batch or _fitting(share, spec.train_prompt_tokens + spec.train_response_tokens)
    return Layout(gpus, nodes, spec.train_generation_nodes, world, replicas, mini, micro)


def _fitting(share: int, tokens: int) -> int:
    most = max(1, PASS_TOKENS // tokens)
    return max(size for size in range(1, min(share, most) + 1) if share % size == 0)


def check(spec: RunSpec) -> Iterator[Fault]:
    """Every fault of the chosen engine's parameters."""
    if spec.train_engine == "trl":
        yield from _not_in_trl(spec)
        return
    yield from _place(spec)
    yield from _versions(spec)
    yield from _user_code(spec)
    yield from engine_settings.check(spec, version_of(spec))
    if spec.gpu_machine:
        yield from _gpus(spec)
        yield from _batches(spec)
    if spec.train_engine == "nemo_rl":
        yield from _nemo_rl(spec)


def _not_in_trl(spec: RunSpec) -> Iterator[Fault]:
    """A setting that would do nothing is refused: nobody should believe that it did something."""
    for name in (
        "train_engine_version",
        "train_mini_batch",
        "train_micro_batch",
        "train_generation_nodes",
        "train_offload",
        "train_lora_rank",
        "train_tools",
        "train_agent_loop",
        "train_extra",
        "train_wandb_secret",
    ):
        if value := getattr(spec, name):
            yield ((name, "train_engine"), f"{name}={value!r}: train_engine=trl does not use it; leave it {_empty(value)!r}")
    for name in ("train_tensor_parallel", "train_max_turns"):
        if getattr(spec, name) != 1:
            yield ((name, "train_engine"), f"{name}={getattr(spec, name)}: train_engine=trl does not use it; leave it 1")


def _empty(value: object) -> object:
    return type(value)()


def _place(spec: RunSpec) -> Iterator[Fault]:
    names = ("train_engine", "infra_platform", "gpu_machine")
    if spec.infra_platform != "gke":
        yield (names, f"train_engine={spec.train_engine} needs GPU nodes: choose infra_platform=gke, or train_engine=trl on this computer")
    elif not spec.gpu_machine:
        yield (names, f"train_engine={spec.train_engine} needs GPU nodes: choose gpu_machine from {', '.join(MACHINES)}")


def _versions(spec: RunSpec) -> Iterator[Fault]:
    names = ("train_engine", "train_engine_version", "gpu_machine")
    version, known = version_of(spec), VERSIONS[spec.train_engine]
    if version not in known:
        yield (
            names,
            f"train_engine_version={version!r}: of {spec.train_engine} are known {', '.join(known)}; choose one of them",
        )
    machine = MACHINES.get(spec.gpu_machine)
    if machine and machine.cpu_arch == "arm64" and (spec.train_engine, version) == ("verl", "0.6.1"):
        yield (names, f"train_engine_version={version!r}: verl has images for {spec.gpu_machine} (arm64) from 0.9 on; choose {A4X_VERL}")


def _gpus(spec: RunSpec) -> Iterator[Fault]:
    layout, parallel = layout_of(spec), spec.train_tensor_parallel
    names = ("train_tensor_parallel", "gpu_machine", "train_engine")
    if layout.gpus % parallel:
        choices = ", ".join(str(size) for size in range(1, layout.gpus + 1) if layout.gpus % size == 0)
        yield (
            names,
            f"train_tensor_parallel={parallel} does not divide the {layout.gpus} GPUs of a {spec.gpu_machine} "
            f"({layout.gpus} = {layout.gpus // parallel} x {parallel} + {layout.gpus % parallel}): choose {choices}",
        )
    if spec.train_generation_nodes and spec.train_engine == "verl":
        yield (
            ("train_generation_nodes", "train_engine"),
            f"train_generation_nodes={spec.train_generation_nodes}: verl generates on the GPUs that train; leave it 0, or choose nemo_rl",
        )
    elif spec.train_generation_nodes >= spec.gpu_nodes:
        yield (
            ("train_generation_nodes", "gpu_nodes"),
            f"train_generation_nodes={spec.train_generation_nodes} leaves {spec.gpu_nodes - spec.train_generation_nodes} of "
            f"gpu_nodes={spec.gpu_nodes} to train; choose 0 to {spec.gpu_nodes - 1}",
        )


def _batches(spec: RunSpec) -> Iterator[Fault]:
    """What verl and NeMo RL assert after minutes of starting up, told before anything starts."""
    layout, batch, group = layout_of(spec), spec.train_batch_size, spec.train_group_size
    unit = "GPUs" if spec.train_engine == "verl" else f"replicas ({layout.world} GPUs / train_tensor_parallel={spec.train_tensor_parallel})"
    shape = ("train_engine", "gpu_machine", "gpu_nodes", "train_generation_nodes", "train_tensor_parallel")
    mini_name = "train_mini_batch" if spec.train_mini_batch else "train_batch_size"
    if batch % layout.replicas:
        yield (("train_batch_size", *shape), f"{_remainder('train_batch_size', batch, layout.replicas)} over {layout.replicas} {unit}")
    if spec.train_mini_batch:
        names = ("train_mini_batch", "train_batch_size", "train_group_size")
        if batch % layout.mini:
            yield (
                names,
                f"train_batch_size={batch} is no whole number of updates of train_mini_batch={layout.mini} "
                f"({batch} = {batch // layout.mini} x {layout.mini} + {batch % layout.mini}); choose {_divisors(batch, layout.mini)}",
            )
        if layout.mini % group:
            yield (
                names,
                f"train_mini_batch={layout.mini} is no whole number of groups of train_group_size={group} "
                f"({layout.mini} = {layout.mini // group} x {group} + {layout.mini % group}); choose {_multiples(layout.mini, group)}",
            )
        if layout.mini % layout.replicas:
            yield (
                ("train_mini_batch", *shape),
                f"{_remainder('train_mini_batch', layout.mini, layout.replicas)} over {layout.replicas} {unit}",
            )
    share = layout.mini // layout.replicas
    if spec.train_micro_batch and layout.mini % layout.replicas == 0 and share % spec.train_micro_batch:
        yield (
            ("train_micro_batch", mini_name, *shape),
            f"train_micro_batch={spec.train_micro_batch} does not divide what a GPU has of an update: {mini_name}={layout.mini} / "
            f"{layout.replicas} {unit} = {share} ({share} = {share // spec.train_micro_batch} x {spec.train_micro_batch} + "
            f"{share % spec.train_micro_batch}); choose {_divisors(share, spec.train_micro_batch)}",
        )


def _remainder(name: str, value: int, over: int) -> str:
    choices = _multiples(value, over)
    return f"{name}={value} does not divide evenly ({value} = {value // over} x {over} + {value % over}; choose {choices})"


def _multiples(near: int, of: int) -> str:
    below = near - near % of
    return " or ".join(str(value) for value in (below, below + of) if value)


def _divisors(of: int, near: int) -> str:
    """The divisors next to `near`."""
    divisors = [size for size in range(1, of + 1) if of % size == 0]
    below = [size for size in divisors if size <= near][-1:]
    above = [size for size in divisors if size > near][:1]
    return " or ".join(map(str, below + above))


def _user_code(spec: RunSpec) -> Iterator[Fault]:
    for name, pattern, shape in (
        ("train_tools", _FILE, "a YAML file in train_code_uri"),
        ("train_agent_loop", _LOOP, "FILE.yaml:NAME in train_code_uri"),
    ):
        value = getattr(spec, name)
        if not value:
            continue
        if spec.train_engine != "verl":
            yield ((name, "train_engine"), f"{name}={value!r}: only verl calls tools and agent loops of user code; leave it ''")
        elif not pattern.fullmatch(value) or ".." in value:
            yield ((name,), f"{name}={value!r}: must be {shape}")
        elif not spec.train_code_uri:
            yield ((name, "train_code_uri"), f"{name}={value!r} is user code but train_code_uri is ''; give the folder that holds it")
    turns = spec.train_max_turns
    if turns > 1 and not (spec.train_tools or spec.train_agent_loop):
        yield (
            ("train_max_turns", "train_tools", "train_agent_loop"),
            f"train_max_turns={turns}: without train_tools or train_agent_loop nobody answers the model; leave it 1",
        )
    if spec.train_tools and turns < 2:
        yield (
            ("train_max_turns", "train_tools"),
            f"train_max_turns={turns}: with train_tools the model needs a turn after the tool's answer; choose 2 or more",
        )
    if spec.train_wandb_secret and not _SECRET.fullmatch(spec.train_wandb_secret):
        yield (
            ("train_wandb_secret",),
            f"train_wandb_secret: must be the name of a Secret Manager secret ({_SECRET.pattern}), never the key itself",
        )


def _nemo_rl(spec: RunSpec) -> Iterator[Fault]:
    if spec.train_lora_rank:
        yield (
            ("train_lora_rank", "train_engine"),
            f"train_lora_rank={spec.train_lora_rank}: NeMo RL's adapters are not converted; leave it 0, or choose verl",
        )
    if spec.train_offload:
        yield (
            ("train_offload", "train_engine"),
            "train_offload=True: NeMo RL moves weights and optimizer out of the way of generating by itself; leave it False",
        )
    if spec.train_reward != "gsm8k":
        yield (
            ("train_reward", "train_engine"),
            f"train_reward={spec.train_reward!r}: NeMo RL scores with its math verifier; choose gsm8k, or verl for other rewards",
        )
    if (spec.train_engine, version_of(spec)) == ("nemo_rl", "v0.5.0") and spec.train_steps % spec.train_save_every:
        steps, every = spec.train_steps, spec.train_save_every
        yield (
            ("train_steps", "train_save_every", "train_engine", "train_engine_version"),
            f"train_steps={steps}: NeMo RL v0.5.0 validates only at multiples of train_save_every={every}, so the last step would have no "
            f"score ({steps} = {steps // every} x {every} + {steps % every}); choose {_multiples(steps, every)} steps, or v0.7.0",
        )
