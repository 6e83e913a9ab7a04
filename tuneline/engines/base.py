"""What an engine is: from RunSpec to a job, and from what the job wrote to metrics and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuneline.config.engine_rules import version_of
from tuneline.config.spec import RunSpec
from tuneline.core.names import canonical_json, sha256_text

#: Takes new lines, gives the steps that they complete or change, each as a whole row.
Follow = Callable[[Iterable[str]], list[dict[str, Any]]]

#: Parameters that change how a training is run but not what it computes; they are no part of training_key.
NOT_IN_KEY = (
    "train_attempts",
    "train_stall_minutes",
    "train_deadline_hours",
    "train_force",
    "train_flat_steps",
    "train_min_entropy",
    "train_wandb_secret",
    "train_code_uri",  # its digest is
)


@dataclass(frozen=True)
class TrainingInputs:
    """Where one attempt reads and writes; all are folders of the store.

    Attributes:
        job_name: `<run_id>-a<N>`.
        base_dir: Staged base model (Hugging Face format).
        dataset_dir: Staged data set: train.parquet and test.parquet in verl's schema.
        code_dir: Staged user code, '' for none.
        attempt_dir: Where the attempt writes checkpoints, and `metrics.jsonl` where the engine writes its own.
        resume_from: A complete checkpoint of this or an earlier attempt, '' to start at step 0.
        engine_dir: The engine's own source at a pinned commit, '' for the one in the image.
    """

    job_name: str
    base_dir: str
    dataset_dir: str
    code_dir: str
    attempt_dir: str
    resume_from: str = ""
    engine_dir: str = ""


@dataclass(frozen=True)
class JobRequest:
    """A job for a Ray cluster.

    Attributes:
        argv: An argument list, never a shell string.
        env: Environment of the driver and of every worker.
        metadata: Labels.
        files: Absolute path, as the job sees it, to text: written before the job starts.
        secrets: Environment variable to the name of a Secret Manager secret; the value never stands in a command or a manifest.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint that an attempt wrote.

    Attributes:
        complete: The engine's own marker is there, and every file that it names has the named size (never 0 bytes).
        fault: Why it is not complete, '' where it is.
        world_size: Ranks that wrote it.
    """

    step: int
    path: str
    complete: bool
    fault: str = ""
    world_size: int = 0


class Engine(Protocol):
    """What trains."""

    name: str
    #: Whether its metrics stand in the job's log, and not in the attempt's own `metrics.jsonl`.
    metrics_in_log: bool

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        """The job of one attempt; writes nothing."""

    def parse_metrics(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """One dict a step with normalized names: step, reward_mean, reward_std, kl, entropy, response_length, grad_norm, learning_rate,
        loss, tokens_per_s, step_time, eval_score; keys without a value are left out. An incomplete last line is skipped.
        """

    def follow(self, start: int = 0) -> Follow:
        """A reader of one attempt's metrics as they grow; like parse_metrics, but it remembers what it read.

        Args:
            start: The step from which the attempt resumed.
        """

    def find_checkpoints(self, root: str) -> list[Checkpoint]:
        """Every checkpoint below one training key's folder (all its attempts), oldest step first."""

    def inspect_checkpoints(self, root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
        """The same from a listing.

        Args:
            root: The training key's folder, as the listing's reader names it; what the checkpoints' paths begin with.
            files: Path below it to size in bytes.
            read: The text of one of `files`.
        """

    def why_not_resume(self, spec: RunSpec, checkpoint: Checkpoint) -> str:
        """Why this complete checkpoint cannot be resumed by this spec, '' where it can."""

    def expected_final_step(self, spec: RunSpec) -> int:
        """The step at which a whole training of this spec ends."""

    def code_digest(self) -> str:
        """sha256 over the engine's code and version: part of training_key."""


def training_key(spec: RunSpec, engine: Engine, *, base_digest: str, data_digest: str, code_digest: str, image: str) -> str:
    """The identity of a training: equal keys compute the same weights. 64 hex characters.

    Args:
        spec: Its train_ parameters (less NOT_IN_KEY) and the number and kind of its workers.
        base_digest, data_digest, code_digest: Content digests of what it reads ('' for no user code).
        image: The image it runs in.
    """
    parameters = {name: value for name, value in spec.subset("train_").items() if name not in NOT_IN_KEY}
    identity = {
        "parameters": {**parameters, **_size(spec)},
        "base": base_digest,
        "data": data_digest,
        "code": code_digest,
        "engine": engine.code_digest(),
        "image": image,
    }
    return sha256_text(canonical_json(identity))


def _size(spec: RunSpec) -> dict[str, Any]:
    if spec.train_engine == "trl":
        return {"gpu_workers": spec.gpu_workers}
    return {"gpu_nodes": spec.gpu_nodes, "gpu_machine": spec.gpu_machine, "train_engine_version": version_of(spec)}
