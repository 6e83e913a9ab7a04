"""Whether GPUs talk as fast as their machine can: an all-reduce over all of them before training, with a floor.

A worker whose RDMA is broken trains at a tenth of the speed and says nothing; a quarter of an hour finds it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from tuneline.config.machines import MACHINES
from tuneline.core.clock import Deadline
from tuneline.core.errors import SlowNetwork
from tuneline.core.log import get_logger
from tuneline.kube.api import Api, ApiError, Ref
from tuneline.kube.errors import KubeError
from tuneline.kube.facts import Facts
from tuneline.kube.objects import apply_, delete_, get, list_
from tuneline.kube.render import render_job
from tuneline.tasks.gke import Site

_log = get_logger("nccl_check")

#: Part of the machine's figure below which something is broken. Rings reach 80-95 % of it.
FLOOR = 0.5
BYTES = 1 << 30
SECONDS = 900
POLL_SECONDS = 10.0
GONE_SECONDS = 300.0


def job_name(run_id: str) -> str:
    """The check's RayJob."""
    return f"{run_id}-nccl"


def check(site: Site, api: Api, facts: Facts) -> str:
    """Measure. Returns what was found, in words.

    Raises:
        SlowNetwork: Below the floor, or the job fails; the message holds its last lines.
    """
    spec, name = site.spec, job_name(site.run_id)
    machine = MACHINES[spec.gpu_machine]
    floor = machine.fabric_gb_s * FLOOR
    program = files("tuneline.rayjobs").joinpath("allreduce.py").read_text(encoding="utf-8")
    argv = ("python", "-c", program, str(spec.gpu_nodes), str(machine.gpus), str(floor), str(BYTES), "nccl")
    job = render_job(spec, site.run_id, facts, job_name=name, argv=argv, env={}, deadline_seconds=SECONDS)
    ref = Ref.of(job.body)
    apply_(api, job.body)
    until = Deadline.after(site.clock, SECONDS + 120.0)
    while (status := (get(api, ref) or {}).get("status", {})).get("jobStatus") not in ("SUCCEEDED", "FAILED", "STOPPED"):
        if status.get("jobDeploymentStatus") == "Failed" or until.passed:
            raise _slow(site, floor, str(status.get("message") or status.get("reason") or "it did not end in time"))
        site.clock.sleep(POLL_SECONDS)
    if status["jobStatus"] != "SUCCEEDED":
        raise _slow(site, floor, str(status.get("message", "")))
    figure = _figure(api, ref.namespace, name)
    text = f"all-reduce over {spec.gpu_nodes * machine.gpus} GPUs: {figure or f'at least {floor:g}'} GB/s"
    _log.info("%s (floor %g)", text, floor)
    # Its name is free again, and it does not count as training.
    delete_(api, [ref], Deadline.after(site.clock, GONE_SECONDS))
    return text


def _slow(site: Site, floor: float, message: str) -> SlowNetwork:
    lines = message.strip().splitlines()[-6:]
    return SlowNetwork(
        "the GPUs of the run do not reach each other at the speed of their machine",
        asked=f"all-reduce at {floor:g} GB/s or more on {site.spec.gpu_nodes} x {site.spec.gpu_machine}",
        found=" | ".join(line.strip() for line in lines) or "the check's job says nothing",
        next_move="look for a worker without RDMA (NCCL_DEBUG=INFO); gpu_nccl_check=false trains nevertheless",
    )


def _figure(api: Api, namespace: str, name: str) -> str:
    """GB/s from the log of the job's submitter, '' where it cannot be read."""
    try:
        for pod in list_(api, "v1", "Pod", namespace=namespace, labels={"job-name": name}):
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/log"
            for line in api.stream(path, {"tailLines": "200"}, idle_seconds=30.0):
                if '"all_reduce_gb_s"' in line:
                    found: Any = json.loads(line[line.index("{") :])
                    return f"{found['all_reduce_gb_s']:g}"
    except (KubeError, ApiError, ValueError, KeyError) as error:
        _log.info("the figure of the check cannot be read: %s", error)
    return ""
