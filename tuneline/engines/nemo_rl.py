"""The NeMo RL engine: GRPO on GPU nodes with DTensor and vLLM. This module only describes the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tuneline.config.engine_rules import VERSIONS
from tuneline.config.spec import RunSpec
from tuneline.engines import gpu_job, nemo_rl_checkpoint, nemo_rl_command, nemo_rl_log, nemo_rl_start
from tuneline.engines.base import Checkpoint, Follow, JobRequest, TrainingInputs
from tuneline.engines.listing import folder

_SOURCES = ("nemo_rl_command.py", "nemo_rl_data.py")


class NemoRlEngine:
    """GRPO with NeMo RL's run_grpo; checkpoints are DCP, `step_<N>` below each attempt's folder."""

    name = "nemo_rl"
    metrics_in_log = True

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        """The job of one attempt; writes nothing."""
        return JobRequest(
            argv=nemo_rl_command.build_argv(spec, inputs),
            env=gpu_job.environment(spec, inputs),
            metadata={"tuneline-job": inputs.job_name, "tuneline-engine": self.name},
            files={nemo_rl_command.start_path(inputs): Path(nemo_rl_start.__file__).read_text(encoding="utf-8")},
            secrets=gpu_job.secrets(spec),
        )

    def parse_metrics(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """One dict a step from the job's console."""
        return nemo_rl_log.parse(lines)

    def follow(self, start: int = 0) -> Follow:
        """A reader of one job's console as it grows."""
        return nemo_rl_log.Follower(start)

    def find_checkpoints(self, root: str) -> list[Checkpoint]:
        """Every `<attempt>/step_<N>` below the folder `root`, oldest step first."""
        return self.inspect_checkpoints(root, *folder(root))

    def inspect_checkpoints(self, root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
        """The same from a listing."""
        return nemo_rl_checkpoint.inspect(root, files, read)

    def why_not_resume(self, spec: RunSpec, checkpoint: Checkpoint) -> str:
        """DCP is resharded to any number of GPUs."""
        return ""

    def expected_final_step(self, spec: RunSpec) -> int:
        """NeMo RL's steps are RunSpec's: one batch each."""
        return spec.train_steps

    def code_digest(self) -> str:
        """sha256 over what turns a spec into settings; the version and the image are in the training key beside it."""
        return gpu_job.digest(",".join(VERSIONS["nemo_rl"]), _SOURCES)
