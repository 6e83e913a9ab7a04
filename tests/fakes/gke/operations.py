"""GKE's operations, and which of them bar which others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.compute.links import ZONE
from tests.fakes.errors import ApiError, rpc_status
from tests.fakes.faults import Faults
from tests.fakes.world import Body, World

ROOT = "https://container.googleapis.com/v1/"
#: Operations on the pools of one cluster that may run at once.
CONCURRENT = 5


@dataclass
class Running:
    """An operation and what it holds: a cluster, or one pool of it (`pool` is '' for the cluster itself)."""

    body: Body
    cluster: str
    pool: str
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return bool(self.body["status"] == "DONE")


class Operations:
    """GKE's operations by path."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.all: dict[str, Running] = {}

    def guard(self, cluster: str, pool: str = "") -> None:
        """Refuse what another operation bars.

        Raises:
            ApiError: 400 CLUSTER_ALREADY_HAS_OPERATION, or 429 past five at once.
        """
        running = [item for item in self.all.values() if item.cluster == cluster and not item.done]
        for item in running:
            if not (item.pool and pool and item.pool != pool):
                raise ApiError(
                    400,
                    f"Cluster is running incompatible operation {item.body['name']}.",
                    status="FAILED_PRECONDITION",
                    reason="failedPrecondition",
                    info=("CLUSTER_ALREADY_HAS_OPERATION", "container.googleapis.com"),
                )
        if len(running) >= CONCURRENT:
            name = cluster.rpartition("/")[2]
            raise ApiError(
                429, f'Too many operations: cluster "{name}" hits the concurrent operations quota {CONCURRENT}, please try again later.'
            )

    def start(self, kind: str, cluster: str, pool: str = "") -> Running:
        """Begin an operation; whoever began it calls `finish`."""
        _, project_id, _, location = cluster.split("/")[:4]
        project = self.world.project(project_id)
        name = f"operation-{int(self.world.now() * 1000)}-{self.world.id('gke-operation')[:32]}"
        body = {
            "name": name,
            "operationType": kind,
            "status": "RUNNING",
            "location": location,
            "zone": location,
            "selfLink": numbered(f"projects/{project.id}/locations/{location}/operations/{name}", project.number),
            "targetLink": numbered(pool or cluster, project.number),
            "startTime": self.world.stamp(),
        }
        item = Running(body, cluster, pool)
        self.all[f"projects/{project.id}/locations/{location}/operations/{name}"] = item
        return item

    def later(self, item: Running, method: str, seconds: float, effect: Callable[[], None], undo: Callable[[str], None]) -> None:
        """Finish `item` after `seconds` with `effect`, or with `undo(message)` where a test wants the operation to fail."""
        fault = self.faults.find(method, item.pool or item.cluster, self.world.now())

        def end() -> None:
            if fault and fault.error:
                error = fault.error()
                undo(error.message)
                self.finish(item, error.status, error.message)
            else:
                effect()

        self.world.after(seconds, end)

    def finish(self, item: Running, code: str = "", message: str = "", condition: str = "") -> None:
        """End an operation: well, or with a google.rpc code, a message and a GKE condition (`GCE_STOCKOUT`)."""
        item.body.update(status="DONE", endTime=self.world.stamp())
        if code:
            item.body.update(error=rpc_status(code, message), statusMessage=message)
        if condition:
            item.body["nodepoolConditions" if item.pool else "clusterConditions"] = [
                {"code": condition, "canonicalCode": code, "message": message}
            ]

    def get(self, path: str) -> Body:
        if path not in self.all:
            raise ApiError(404, f"Not found: {path}.")
        return self.all[path].body

    def within(self, project: str, location: str) -> list[Body]:
        prefix = f"projects/{project}/locations/"
        wanted = (path for path in self.all if path.startswith(prefix))
        return [self.all[path].body for path in wanted if location in ("-", path.split("/")[3])]


def numbered(path: str, number: str) -> str:
    """The URL as GKE writes it: the project by number, `zones` for a zonal cluster."""
    parts = path.split("/")
    parts[1] = number
    if ZONE.fullmatch(parts[3]):
        parts[2] = "zones"
    return ROOT + "/".join(parts)
