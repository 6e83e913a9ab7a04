"""The driver of a trl training attempt: `python -m tuneline.engines.trl_worker CONFIG`, CONFIG as TrlEngine.build_job makes it.

Runs in the Ray job. Joins the job's cluster (RAY_ADDRESS), or starts a local one where there is none, and runs trl_loop on every
worker. It never retries: an attempt that loses a worker ends, and the caller starts the next one from the newest checkpoint.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

from tuneline.core.errors import JobError, TunelineError
from tuneline.engines.trl import ENVIRONMENT


def main(argv: list[str]) -> int:
    """Run the attempt; 0 when its last step is saved, 1 with the reason on stderr."""
    config = json.loads(argv[0])
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = os.environ.get("RAY_ADDRESS")
    if not address and "RAY_AUTH_MODE" not in os.environ:
        # Without one of its own, Ray writes a token into the home folder that every later cluster would ask for.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    if address:
        ray.init(address=address)
    else:
        ray.init(address="local", num_cpus=config["spec"]["gpu_workers"], include_dashboard=False)
    try:
        _fit(config)
    except TunelineError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    finally:
        ray.shutdown()
    return 0


def _fit(config: dict[str, Any]) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from tuneline.engines.process_group import OwnAddressConfig

    workers, job_name = config["spec"]["gpu_workers"], config["inputs"]["job_name"]
    gpus = ray.cluster_resources().get("GPU", 0)
    use_gpu = gpus >= workers
    if gpus and not use_gpu:
        print(f"{gpus:g} GPU for {workers} workers: training on the CPU (gpu_workers={gpus:g} would use the GPU)", flush=True)
    scratch = Path(config["inputs"]["attempt_dir"]) / ".ray-train"
    trainer = TorchTrainer(
        _train,
        train_loop_config=config,
        torch_config=OwnAddressConfig(backend="nccl" if use_gpu else "gloo"),
        # The trainer only waits: it takes no CPU away from the workers.
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu, trainer_resources={"CPU": 0}),
        run_config=RunConfig(name=job_name, storage_path=str(scratch), failure_config=FailureConfig(max_failures=0), verbose=0),
    )
    try:
        trainer.fit()
    except Exception as error:
        raise _failure(job_name, error) from error
    shutil.rmtree(scratch, ignore_errors=True)


def _train(config: dict[str, Any]) -> None:
    # Imported by the workers alone: the driver and Ray's trainer would each spend seconds on it before the workers start.
    from tuneline.engines.trl_loop import train

    train(config)


def _failure(job_name: str, error: BaseException) -> JobError:
    """The attempt's end, told by the innermost error: Ray wraps what a worker raised several times."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None:
        error = inner
    if isinstance(error, TunelineError):
        return JobError(
            f"training attempt {job_name} failed: {error.message}",
            asked=error.asked,
            found=error.found,
            choices=error.choices,
            next_move=error.next_move,
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return JobError(
        f"training attempt {job_name} failed: {type(error).__name__}: {lines[-1] if lines else 'no message'}",
        next_move="the lines above hold the worker's traceback",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
