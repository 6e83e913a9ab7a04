"""The verl engine: GRPO on GPU nodes with FSDP2 and vLLM. This module only describes the job; verl runs in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tuneline.config.engine_rules import VERSIONS, layout_of
from tuneline.config.spec import RunSpec
from tuneline.engines import gpu_job, scoring, verl_checkpoint, verl_command, verl_log
from tuneline.engines.base import Checkpoint, Follow, JobRequest, TrainingInputs
from tuneline.engines.listing import folder

_SOURCES = ("verl_command.py", "scoring.py")


class VerlEngine:
    """GRPO with verl's main_ppo; a checkpoint is one file a rank and part, tied to the number of ranks."""

    name = "verl"
    metrics_in_log = True

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        """The job of one attempt; writes nothing."""
        return JobRequest(
            argv=verl_command.build_argv(spec, inputs),
            env={**gpu_job.environment(spec, inputs), "TUNELINE_REWARD": spec.train_reward},
            metadata={"tuneline-job": inputs.job_name, "tuneline-engine": self.name},
            files={verl_command.scoring_path(inputs): Path(scoring.__file__).read_text(encoding="utf-8")},
            secrets=gpu_job.secrets(spec),
        )

    def parse_metrics(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """One dict a step from the job's console."""
        return verl_log.parse(lines)

    def follow(self, start: int = 0) -> Follow:
        """A reader of one job's console as it grows."""
        return verl_log.Follower()

    def find_checkpoints(self, root: str) -> list[Checkpoint]:
        """Every `<attempt>/global_step_<N>` below the folder `root`, oldest step first."""
        return self.inspect_checkpoints(root, *folder(root))

    def inspect_checkpoints(self, root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
        """The same from a listing."""
        return verl_checkpoint.inspect(root, files, read)

    def why_not_resume(self, spec: RunSpec, checkpoint: Checkpoint) -> str:
        """verl reads the shard of its own rank, by its own number of ranks: another number finds no file."""
        world = layout_of(spec).world
        if checkpoint.world_size == world:
            return ""
        return (
            f"{checkpoint.path} was written by {checkpoint.world_size} GPUs and verl resumes on as many only, not on {world}; "
            f"choose gpu_nodes for {checkpoint.world_size} GPUs, or start again with train_force=true"
        )

    def expected_final_step(self, spec: RunSpec) -> int:
        """verl's steps are RunSpec's: one batch each."""
        return spec.train_steps

    def code_digest(self) -> str:
        """sha256 over what turns a spec into settings; the version and the image are in the training key beside it."""
        return gpu_job.digest(",".join(VERSIONS["verl"]), _SOURCES)
