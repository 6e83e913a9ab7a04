"""The trl engine: GRPO with TRL under Ray Train. This module only describes the job; torch is imported where the job runs."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.core.names import canonical_json, sha256_text
from tuneline.engines import listing, metrics
from tuneline.engines.base import Checkpoint, Follow, JobRequest, TrainingInputs

MARKER = "complete.json"
_STEP = re.compile(r"(?P<folder>[^/]+/step_\d+)/(?P<rest>.+)")

#: What an attempt's environment sets. One thread a worker: the workers are the parallelism.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Train V2 takes as long to start, prints worker lines twice and leaves a cleaner behind that looks for its controller.
    "RAY_TRAIN_V2_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "WANDB_DISABLED": "true",
    "PYTHONUNBUFFERED": "1",
    # The job's log is for progress and errors: no deprecations of libraries that are pinned, no advice from DDP.
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
#: Modules whose text decides what is computed.
_SOURCES = ("trl_worker.py", "trl_loop.py", "trl_checkpoint.py", "process_group.py", "trl.py", "rewards.py", "scoring.py", "schedule.py")
_PACKAGES = ("torch", "trl", "transformers", "accelerate", "ray")


class TrlEngine:
    """GRPO with TRL's GRPOTrainer; checkpoints are DCP, `step_<N>` below each attempt's folder."""

    name = "trl"
    metrics_in_log = False

    def build_job(self, spec: RunSpec, inputs: TrainingInputs) -> JobRequest:
        """The job of one attempt; writes nothing."""
        config = {"spec": spec.model_dump(), "inputs": asdict(inputs)}
        return JobRequest(
            argv=(sys.executable, "-m", "tuneline.engines.trl_worker", canonical_json(config)),
            env=dict(ENVIRONMENT),
            metadata={"tuneline-job": inputs.job_name, "tuneline-engine": self.name},
        )

    def parse_metrics(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """One dict a step from the lines of `metrics.jsonl`."""
        return metrics.parse(lines)

    def follow(self, start: int = 0) -> Follow:
        """Its lines stand for themselves."""
        return metrics.parse

    def find_checkpoints(self, root: str) -> list[Checkpoint]:
        """Every `<attempt>/step_<N>` below `root`, oldest step first; of equal steps a complete one comes last."""
        return self.inspect_checkpoints(root, *listing.folder(root))

    def inspect_checkpoints(self, root: str, files: Mapping[str, int], read: Callable[[str], str]) -> list[Checkpoint]:
        """The same from a listing."""
        folders: dict[str, dict[str, int]] = defaultdict(dict)
        for path, size in files.items():
            if found := _STEP.fullmatch(path):
                folders[found["folder"]][found["rest"]] = size
        checkpoints = [
            _inspect(f"{root}/{folder}", content, lambda path, folder=folder: read(f"{folder}/{path}"))  # type: ignore[misc]
            for folder, content in folders.items()
        ]
        return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.complete, checkpoint.path))

    def why_not_resume(self, spec: RunSpec, checkpoint: Checkpoint) -> str:
        """DCP is resharded to any number of workers."""
        return ""

    def expected_final_step(self, spec: RunSpec) -> int:
        """TRL counts optimizer steps, as train_steps does."""
        return spec.train_steps

    def code_digest(self) -> str:
        """sha256 over the engine's source files and the versions of what computes."""
        folder = Path(__file__).parent
        sources = {name: sha256_text((folder / name).read_text(encoding="utf-8")) for name in _SOURCES}
        return sha256_text(canonical_json({"sources": sources, "packages": {name: version(name) for name in _PACKAGES}}))


def _inspect(path: str, content: Mapping[str, int], read: Callable[[str], str]) -> Checkpoint:
    step = int(path.rpartition("_")[2])
    if MARKER not in content:
        return Checkpoint(step, path, complete=False, fault=f"no {MARKER}: it was not finished")
    try:
        marker = json.loads(read(MARKER))
        world_size, files = int(marker["world_size"]), {str(name): int(size) for name, size in marker["files"].items()}
        marked_step = int(marker["step"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Checkpoint(step, path, complete=False, fault=f"{MARKER} cannot be read: {type(error).__name__}: {error}")
    fault = _fault(content, step, marked_step, world_size, files)
    return Checkpoint(step, path, complete=not fault, fault=fault, world_size=world_size)


def _fault(content: Mapping[str, int], step: int, marked_step: int, world_size: int, files: dict[str, int]) -> str:
    if marked_step != step:
        return f"{MARKER} names step {marked_step}"
    for part in ("weights", "optimizer"):
        shards = [name for name in files if name.startswith(f"{part}/") and name.endswith(".distcp")]
        if f"{part}/.metadata" not in files:
            return f"{MARKER} names no {part}/.metadata"
        if len(shards) != world_size:
            return f"{MARKER} names {len(shards)} {part} shards for {world_size} ranks"
    for name, size in sorted(files.items()):
        if name not in content:
            return f"{name} is missing"
        if content[name] != size:
            return f"{name} has {content[name]} bytes, not {size}"
        if size == 0:
            return f"{name} is empty"
    return ""
