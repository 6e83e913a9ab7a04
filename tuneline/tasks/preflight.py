"""The first task: every fault before anything costs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tuneline.config.spec import RunSpec
from tuneline.core import log
from tuneline.core.clock import SYSTEM, Clock
from tuneline.core.errors import SpecError
from tuneline.tasks.context import announce_run, run_id_of, running
from tuneline.tasks.gke import Site

logger = log.get_logger("tasks.preflight")

#: A local-tiny run writes about 10 MB; room for logs and a second one.
FREE_BYTES = 200_000_000
TRAINER_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "ray")


class Checked(NamedTuple):
    """What later tasks take."""

    spec: str
    run_id: str


def run(parameters: Mapping[str, Any], *, clock: Clock = SYSTEM) -> Checked:
    """Check parameters and where the run is to happen; start nothing.

    Args:
        parameters: Every RunSpec parameter, and job_name.

    Raises:
        SpecError: With every fault at once.
    """
    values = dict(parameters)
    job_name = values.pop("job_name")
    spec = RunSpec.build(values)
    if not spec.output_root:
        raise SpecError(["output_root='': must be an absolute folder; `tuneline run` sets it"])
    run_id = run_id_of(spec.infra_platform, spec.infra_project, spec.infra_region, job_name)
    announce_run(run_id)
    site = Site(spec, run_id, clock) if spec.infra_platform == "gke" else None
    with running("preflight", root=spec.output_root, run_id=run_id, parameters=spec.model_dump(), site=site, clock=clock) as task:
        faults = list(faults_on_gke(spec) if site else faults_of_this_computer(spec))
        if faults:
            raise SpecError(faults)
        task.notes["run"] = run_id
        return Checked(spec.to_json(), run_id)


def faults_on_gke(spec: RunSpec) -> Iterator[str]:
    """What a run on GKE lacks that no rule between parameters says, a line each."""
    if not spec.gpu_image:
        yield f"gpu_image='': train_engine={spec.train_engine} has no image of its own on GKE; name one that holds it, by digest"


def faults_of_this_computer(spec: RunSpec) -> Iterator[str]:
    """What this computer lacks for the run, a line each."""
    root = Path(spec.output_root)
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        yield f"output_root={spec.output_root!r}: {existing} is not writable; choose another folder"
    elif (free := shutil.disk_usage(existing).free) < FREE_BYTES:
        yield f"output_root={spec.output_root!r}: {free // 10**6} MB free, {FREE_BYTES // 10**6} MB needed; choose another disk"
    missing = [package for package in TRAINER_PACKAGES if find_spec(package) is None]
    if missing:
        yield f"train_engine={spec.train_engine!r}: {', '.join(missing)} not installed; run pip install -r requirements-local.txt"
