"""GPU-minutes of a run: held from a node's coming to its going, used while a job ran, idle for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tuneline.config.machines import MACHINES
from tuneline.kube.api import Api
from tuneline.kube.objects import RUN_LABEL, list_
from tuneline.tasks.gke import Site


@dataclass(frozen=True)
class GpuTime:
    """GPU-minutes: of one GPU for one minute."""

    held: float
    used: float

    @property
    def idle(self) -> float:
        return max(0.0, self.held - self.used)

    def __str__(self) -> str:
        return f"{self.held:.0f} GPU-minutes held, {self.used:.0f} used, {self.idle:.0f} idle"


def gpu_nodes(api: Api, site: Site) -> list[str]:
    """Names of the run's GPU nodes that are in the cluster now."""
    if not site.spec.gpu_machine:
        return []
    return sorted(node["metadata"]["name"] for node in list_(api, "v1", "Node", labels={RUN_LABEL: site.run_id}))


def note_nodes(site: Site, nodes: Iterable[str]) -> None:
    """Record when each node was first seen."""
    now = site.clock.now()

    def edit(document: Any) -> dict[str, Any]:
        known = dict(document or {})
        return {**known, "joined": {**dict.fromkeys(nodes, now), **known.get("joined", {})}}

    site.documents.change(site.store.gpus(site.run_id), edit)


def note_jobs(site: Site, jobs: Iterable[Mapping[str, Any]]) -> None:
    """Record when each RayJob ran; one that still runs ends now."""
    now, ran = site.clock.now(), {}
    for job in jobs:
        status = job.get("status", {})
        if status.get("startTime"):
            ran[job["metadata"]["name"]] = [_seconds(status["startTime"]), _seconds(status["endTime"]) if status.get("endTime") else now]

    def edit(document: Any) -> dict[str, Any]:
        known = dict(document or {})
        return {**known, "jobs": {**ran, **known.get("jobs", {})}}

    site.documents.change(site.store.gpus(site.run_id), edit)


def close(site: Site) -> GpuTime:
    """The run's time, now that its nodes are gone; a later call gives the same."""
    now = site.clock.now()

    def edit(document: Any) -> dict[str, Any]:
        known = dict(document or {})
        joined, ended = known.get("joined", {}), dict(known.get("ended", {}))
        return {**known, "ended": {**dict.fromkeys(joined, now), **ended}}

    document = site.documents.change(site.store.gpus(site.run_id), edit)
    joined, ended = document.get("joined", {}), document["ended"]
    held = sum(ended[node] - joined[node] for node in joined) / 60
    ran = sum(end - start for start, end in document.get("jobs", {}).values()) / 60
    gpus = MACHINES[site.spec.gpu_machine].gpus if site.spec.gpu_machine else 0
    return GpuTime(held * gpus, min(held, ran * site.spec.gpu_nodes) * gpus)


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
