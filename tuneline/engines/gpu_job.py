"""What the jobs of verl and NeMo RL share: environment, digest, and whether a checkpoint may be resumed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tuneline.config.spec import RunSpec
from tuneline.core.names import canonical_json, sha256_text
from tuneline.engines.base import TrainingInputs


def environment(spec: RunSpec, inputs: TrainingInputs) -> dict[str, str]:
    """Environment of driver and workers. NCCL's and GLOO's settings depend on the machine and are the pod's own (kube/context.py)."""
    # Staged by now: nobody asks the hub for anything.
    values = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "HYDRA_FULL_ERROR": "1",
        "TENSORBOARD_DIR": f"{inputs.attempt_dir}/tensorboard",
    }
    paths = [path for path in (inputs.code_dir, inputs.engine_dir) if path]
    return values | ({"PYTHONPATH": ":".join(paths)} if paths else {})


def secrets(spec: RunSpec) -> dict[str, str]:
    """Environment variables whose values are secrets."""
    return {"WANDB_API_KEY": spec.train_wandb_secret} if spec.train_wandb_secret else {}


def digest(version: str, sources: Iterable[str]) -> str:
    """sha256 over an engine's version and the text of those modules of ours that decide what it computes."""
    folder = Path(__file__).parent
    texts = {name: sha256_text((folder / name).read_text(encoding="utf-8")) for name in sources}
    return sha256_text(canonical_json({"version": version, "sources": texts}))
