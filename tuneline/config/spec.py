"""RunSpec: every parameter of a run and every rule between them.

One validator for compile.py, the CLI, preflight and the tests. `RunSpec.build` collects every fault and raises once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from tuneline.config import rules
from tuneline.core.errors import SpecError
from tuneline.core.names import canonical_json

Text = Annotated[str, Field(max_length=1000)]


def _field(default: Any, meaning: str, unit: str = "", **limits: Any) -> Any:
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


class RunSpec(BaseModel):
    """The parameters of one run: flat scalars; '' means not given."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, protected_namespaces=())

    infra_platform: Literal["local", "gke"] = _field("local", "Where the run happens: this computer, or Google Kubernetes Engine.")
    infra_project: Text = _field("", "Google Cloud project id.")
    infra_region: Text = _field("", "Region of the cluster, subnets and bucket.")
    infra_zone: Text = _field("", "Zone of the GPUs and of Lustre; the RoCE network profile is this zone's.")
    infra_cpu_zones: Text = _field("", "Zones of the CPU pool, comma separated; '' lets GKE choose in the region.")
    infra_cluster_kind: Literal["autopilot", "standard", "a4x"] = _field("standard", "Kind of GKE cluster.")
    infra_name: Text = _field("tuneline", "Name of the cluster and prefix of the networks and the file system that runs share.")
    infra_network: Text = _field("default", "VPC of the cluster; made if it is not there and starts with infra_name.")
    infra_namespace: Text = _field("tuneline", "Kubernetes namespace of the run.")
    infra_service_account: Text = _field("tuneline", "Kubernetes service account that reads and writes the bucket.")
    infra_release_channel: Literal["rapid", "regular", "stable"] = _field("rapid", "GKE release channel of a cluster that is made.")
    infra_filesystem: Literal["gcsfuse", "lustre"] = _field(
        "gcsfuse", "What workers see at /data: the bucket by GCS FUSE, or Managed Lustre."
    )
    infra_lustre_gib: int = _field(18000, "Capacity of a Lustre instance that is made.", "GiB", ge=9000, le=954_000)
    infra_lustre_throughput: Literal[125, 250, 500, 1000] = _field(500, "Throughput of Lustre for each TiB.", "MB/s per TiB")
    infra_account_network: Text = _field("", "Service account impersonated for networks and firewalls; '' for the caller's own.")
    infra_account_cluster: Text = _field(
        "", "Service account impersonated for clusters, pools and what is in them; '' for the caller's own."
    )
    infra_account_storage: Text = _field("", "Service account impersonated for buckets and Lustre; '' for the caller's own.")
    infra_account_secrets: Text = _field("", "Service account impersonated for Secret Manager; '' for the caller's own.")
    gpu_machine: Literal["", "a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g"] = _field("", "GPU machine type; '' for CPU workers.")
    gpu_nodes: int = _field(2, "GPU nodes of the run.", "nodes", ge=1, le=72)
    gpu_provisioning: Literal["reservation", "spot", "flex-start", "on-demand"] = _field("reservation", "How GPU nodes are bought.")
    gpu_reservation: Text = _field("", "Reservation: NAME or projects/P/reservations/NAME, with /reservationBlocks/B to pin a block.")
    gpu_max_run_hours: float = _field(168.0, "Longest life of flex-start nodes.", "hours", gt=0, le=168)
    gpu_image: Text = _field("", "Container image of Ray head and workers, by digest; '' takes the engine's own.")
    gpu_nccl_check: bool = _field(True, "Measure all-reduce bandwidth before training and refuse a slow cluster.")
    gpu_workers: int = _field(2, "Training processes of the trl engine; verl and nemo_rl use every GPU.", "processes", ge=1, le=64)
    gpu_ready_minutes: float = _field(5.0, "How long the Ray cluster may take to be ready.", "minutes", gt=0, le=240)

    model_id: Text = _field("tiny-qwen2", "Base model: tiny-qwen2 (made here), an absolute folder, or a Hugging Face id.")
    model_revision: Text = _field("", "Revision of a Hugging Face model; '' takes its main branch and records the commit.")
    model_seed: int = _field(0, "Seed of the weights and warm start of a model that is made here.", ge=0, le=2**31 - 1)

    data_id: Text = _field("arithmetic", "Data set: arithmetic (made here), an absolute folder, or a Hugging Face id.")
    data_revision: Text = _field("", "Revision of a Hugging Face data set; '' takes its main branch and records the commit.")
    data_adapter: Literal["verl", "gsm8k"] = _field(
        "verl", "How rows become prompts: verl (verl's parquet schema as it is) or gsm8k (question, answer)."
    )
    data_seed: int = _field(0, "Seed of a data set that is made here: which prompts are held out.", ge=0, le=2**31 - 1)

    train_engine: Literal["trl", "verl", "nemo_rl"] = _field("trl", "What trains: trl (CPU or small), verl or nemo_rl (GPU nodes).")
    train_engine_version: Text = _field("", "Version of verl or NeMo RL; '' takes 0.6.1 (0.9.1 on A4X) or v0.5.0.")
    train_steps: int = _field(100, "Optimizer steps.", "steps", ge=1, le=1_000_000)
    train_save_every: int = _field(50, "Steps between checkpoints; the last step is always saved.", "steps", ge=1, le=1_000_000)
    train_learning_rate: float = _field(1e-6, "Peak learning rate of AdamW.", "", gt=0, le=1)
    train_batch_size: int = _field(128, "Completions per step over all workers.", "completions", ge=2, le=1_048_576)
    train_group_size: int = _field(16, "Completions per prompt: the group whose mean is the baseline.", "completions", ge=2, le=1024)
    train_mini_batch: int = _field(
        0, "Completions per optimizer update; 0 for one update a step with all of them.", "completions", ge=0, le=1_048_576
    )
    train_micro_batch: int = _field(0, "Completions in one pass of a GPU; 0 chooses by their length.", "completions", ge=0, le=65_536)
    train_tensor_parallel: int = _field(
        1, "GPUs that share one copy of the model while generating, and in nemo_rl while training.", "GPUs", ge=1, le=72
    )
    train_generation_nodes: int = _field(0, "Nodes that only generate (nemo_rl); 0 generates where it trains.", "nodes", ge=0, le=71)
    train_generation_memory: float = _field(0.6, "Part of a GPU's memory that generating may fill.", "", gt=0, le=0.95)
    train_offload: bool = _field(False, "Keep weights and optimizer in CPU memory while generating.")
    train_lora_rank: int = _field(0, "Rank of LoRA adapters; 0 trains every weight.", "", ge=0, le=512)
    train_prompt_tokens: int = _field(512, "Longest prompt; a longer one is refused before the first step.", "tokens", ge=1, le=1_048_576)
    train_response_tokens: int = _field(512, "Longest completion.", "tokens", ge=1, le=1_048_576)
    train_temperature: float = _field(1.0, "Sampling temperature of the rollouts.", "", gt=0, le=10)
    train_kl_coef: float = _field(0.0, "Weight of the KL term against the base model; 0 trains without a reference.", "", ge=0, le=10)
    train_reward: Text = _field("gsm8k", "Reward: gsm8k (number after ####), exact (whole answer), or module:function from train_code_uri.")
    train_tools: Text = _field("", "Tool configuration (YAML) in train_code_uri that the model may call (verl); '' for none.")
    train_agent_loop: Text = _field("", "Agent loop of user code (verl): FILE.yaml:NAME in train_code_uri; '' for verl's own.")
    train_max_turns: int = _field(1, "Most answers of the model in one conversation.", "turns", ge=1, le=64)
    train_extra: Text = _field("", "Further settings of the engine: KEY=VALUE separated by spaces; keys are checked.")
    train_code_uri: Text = _field("", "Absolute folder with user code, put on the path of every worker; '' for none.")
    train_seed: int = _field(0, "Seed of sampling and data order.", ge=0, le=2**31 - 1)
    train_attempts: int = _field(3, "Attempts of the training job before the run fails.", "attempts", ge=1, le=20)
    train_stall_minutes: float = _field(15.0, "Longest time without a new step before the job is stopped.", "minutes", gt=0, le=1440)
    train_deadline_hours: float = _field(120.0, "Longest time for training, all attempts together.", "hours", gt=0, le=160)
    train_flat_steps: int = _field(
        20, "Steps in a row without a difference between rewards before the job is stopped; 0 never stops it.", "steps", ge=0, le=1_000_000
    )
    train_min_entropy: float = _field(0.0, "Entropy of the policy below which the job is stopped; 0 never stops it.", "nats", ge=0, le=20)
    train_wandb_secret: Text = _field("", "Secret Manager name of a Weights & Biases key; '' logs to the console and TensorBoard.")
    train_force: bool = _field(False, "Train again even where a complete checkpoint of the same training exists.")

    output_root: Text = _field("", "Where models, data, checkpoints, runs lie: gs://BUCKET[/FOLDER] on gke, else an absolute folder.")
    output_model_name: Text = _field("tuneline-model", "Name under which the model is registered.")
    output_shard_mb: int = _field(5000, "Largest safetensors shard.", "MB", ge=1, le=50_000)
    output_min_score: float = _field(0.0, "Lowest validation score that lets a model be registered.", "score", ge=0, le=1)
    output_min_gain: float = _field(
        0.0, "Lowest gain over the base model's validation score that lets it be registered.", "score", ge=-1, le=1
    )

    ops_cleanup_policy: Literal["gpus", "all", "none"] = _field(
        "gpus", "What the exit task removes: gpus, all that this run made (never models, data, checkpoints), or none."
    )
    ops_rerun_token: Text = _field("", "Any new text makes cached tasks run again.")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes and on as true, which pydantic would take for 1.
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("true and false are no numbers")
        return value

    @classmethod
    def build(cls, parameters: Mapping[str, Any]) -> RunSpec:
        """The spec of these parameters; those not named take their defaults.

        Raises:
            SpecError: With every fault at once: unknown names, types, ranges, choices, and rules between parameters.
        """
        faults = [_unknown(name) for name in parameters if name not in cls.model_fields]
        known = {name: value for name, value in parameters.items() if name in cls.model_fields}
        faulty: set[str] = set()
        try:
            spec = cls(**known)
        except ValidationError as error:
            for item in error.errors():
                name = str(item["loc"][0])
                faulty.add(name)
                faults.append(f"{name}={_shown(known[name])}: {_wanted(name, item['msg'])}")
            # Converted like a valid set, so that rules compare numbers with numbers; a faulty one stands at its default.
            spec = cls(**{name: value for name, value in known.items() if name not in faulty})
        faults += [fault for names, fault in rules.check(spec) if not faulty.intersection(names)]
        if faults:
            raise SpecError(faults)
        return spec

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """The spec in `to_json`'s text, validated again."""
        import json

        return cls.build(json.loads(text))

    def to_json(self) -> str:
        """Every parameter, as canonical JSON."""
        return canonical_json(self.model_dump())

    def subset(self, *prefixes: str) -> dict[str, Any]:
        """The parameters whose names start with one of `prefixes`."""
        return {name: value for name, value in self.model_dump().items() if name.startswith(prefixes)}


def describe(name: str) -> str:
    """One parameter's type, unit and range or choices, for a person."""
    info = RunSpec.model_fields[name]
    if get_origin(info.annotation) is Literal:
        return "one of " + ", ".join(map(str, get_args(info.annotation)))
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    limits = [
        f"{sign} {getattr(item, attribute)}"
        for item in info.metadata
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"), ("max_length", "at most"))
        if getattr(item, attribute, None) is not None
    ]
    kind = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text"}[_type_name(name)]
    if kind == "text":
        limits = [f"{limit} characters" for limit in limits]
    return " ".join(filter(None, [kind, f"of {extra['unit']}" if extra.get("unit") else "", ", ".join(limits)]))


def _type_name(name: str) -> str:
    annotation = RunSpec.model_fields[name].annotation
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0]).__name__
    return getattr(annotation, "__name__", "str")


def parameter_type(name: str) -> str:
    """`int`, `float`, `bool` or `str`."""
    return _type_name(name)


def _wanted(name: str, message: str) -> str:
    return f"must be {describe(name)}" if name in RunSpec.model_fields else message


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-20:]} ({len(text)} characters)"


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, RunSpec.model_fields, n=1, cutoff=0.5) or _by_suffix(name, RunSpec.model_fields)
    hint = f"did you mean {near[0]}?" if near else "`tuneline params` lists every parameter"
    return f"{name}: no such parameter; {hint}"


def _by_suffix(name: str, names: Iterable[str]) -> list[str]:
    return [known for known in names if known.split("_", 1)[1] == name]


def is_folder(text: str) -> bool:
    """Whether a model or data id names a folder of this computer."""
    return os.path.isabs(text)
