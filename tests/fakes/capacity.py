"""What there is to be had: machines in stock, reservations, quotas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.compute.collections import COLLECTIONS, Collection, filled
from tests.fakes.compute.links import link, region_of
from tests.fakes.errors import ApiError
from tests.fakes.world import Body, Entry, Project, World, leaf

#: GPU, and GPUs a machine, of each machine type that has any.
GPUS = {
    "a3-ultragpu-8g": ("nvidia-h200-141gb", 8),
    "a4-highgpu-8g": ("nvidia-b200", 8),
    "a4x-highgpu-4g": ("nvidia-gb200", 4),
}
METRICS = {"nvidia-h200-141gb": "NVIDIA_H200_GPUS", "nvidia-b200": "NVIDIA_B200_GPUS", "nvidia-gb200": "NVIDIA_GB200_GPUS"}


@dataclass(frozen=True)
class Shape:
    """What one node of a pool takes.

    Attributes:
        metric: GPU quota that it counts against, '' for none (no GPU, or reserved).
        reservation: Path of its reservation, '' for none.
        block: Path of the reservation's block, '' for any.
    """

    machine: str
    zone: str
    gpus: int = 0
    metric: str = ""
    reservation: str = ""
    block: str = ""


@dataclass(frozen=True)
class Shortage:
    """Why a machine is not to be had: as the instance group and as GKE name it."""

    code: str
    gke_code: str
    message: str


class Capacity:
    """Stock by (machine type, zone); a pair that is not named has no limit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stock: dict[tuple[str, str], int] = {}

    def set_stock(self, machine: str, zone: str, count: int) -> None:
        """From now on `count` machines in all can run in the zone, reserved ones not counted."""
        with self.world.lock:
            self.stock[(machine, zone)] = count

    def set_quota(self, project: str, metric: str, limit: float, region: str = "") -> None:
        with self.world.lock:
            self.world.project(project).quotas[(metric, region)] = limit

    def reserve(
        self, project: str, name: str, zone: str, machine: str, count: int, blocks: dict[str, int] | None = None, specific: bool = True
    ) -> str:
        """Plant a reservation, with blocks (name: machines) where given; returns its path."""
        path = f"projects/{project}/zones/{zone}/reservations/{name}"
        properties: dict[str, Any] = {"machineType": machine}
        if machine in GPUS:
            gpu, number = GPUS[machine]
            properties["guestAccelerators"] = [{"acceleratorType": gpu, "acceleratorCount": number}]
        body = {
            "name": name,
            "status": "READY",
            "specificReservationRequired": specific,
            "deploymentType": "DENSE",
            "specificReservation": {
                "count": str(count),
                "assuredCount": str(count),
                "inUseCount": "0",
                "instanceProperties": properties,
            },
            "resourceStatus": {"reservationBlockCount": len(blocks or {})},
        }
        with self.world.lock:
            full = filled(COLLECTIONS["reservations"], path, body, self.world.serial(), self.world.stamp())
            self.world.add(path, full, planted=True)
            for block, size in (blocks or {}).items():
                inner = f"{path}/reservationBlocks/{block}"
                view = {"kind": "compute#reservationBlock", "name": block, "status": "READY", "count": size, "inUseCount": 0}
                self.world.add(inner, view | {"zone": link(f"projects/{project}/zones/{zone}"), "selfLink": link(inner)}, planted=True)
        return path

    def take(self, project: Project, shape: Shape) -> Shortage | None:
        """Whether one more machine of this shape can be had; a reservation counts it as used."""
        if shape.reservation:
            return self._take_reserved(shape)
        limit = project.quotas.get((shape.metric, region_of(shape.zone)))
        if limit is not None and self._gpus_in_use(project, shape.metric, region_of(shape.zone)) + shape.gpus > limit:
            message = f"Quota '{shape.metric}' exceeded.  Limit: {limit:.1f} in region {region_of(shape.zone)}."
            return Shortage("QUOTA_EXCEEDED", "GCE_QUOTA_EXCEEDED", message)
        left = self.stock.get((shape.machine, shape.zone))
        if left is not None and self._running(shape.machine, shape.zone) >= left:
            message = (
                f"The zone 'projects/{project.id}/zones/{shape.zone}' does not have enough resources available to fulfill the request. "
                "'(resource type:compute)'."
            )
            return Shortage("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "GCE_STOCKOUT", message)
        return None

    def give_back(self, shape: Shape) -> None:
        """Return a machine: its reservation has one more."""
        if shape.reservation:
            self._count_reserved(shape, -1)

    def free(self, reservation: Entry) -> int:
        specific = reservation.body["specificReservation"]
        return int(specific["count"]) - int(specific["inUseCount"])

    def check_quota(self, project: Project, shape: Shape, machines: int) -> None:
        """GKE's check before it makes a pool.

        Raises:
            ApiError: 403 that names the metric, the request, the shortage and the limit.
        """
        limit = project.quotas.get((shape.metric, region_of(shape.zone)))
        if limit is None or shape.reservation:
            return
        free = limit - self._gpus_in_use(project, shape.metric, region_of(shape.zone))
        wanted = shape.gpus * machines
        if wanted > free:
            raise ApiError(
                403,
                f"Insufficient regional quota to satisfy request: resource \"{shape.metric}\": request requires '{wanted:.1f}' "
                f"and is short "
                f"'{wanted - free:.1f}'. project has a quota of '{limit:.1f}' with '{free:.1f}' available. View and manage quotas at "
                f"https://console.cloud.google.com/iam-admin/quotas?usage=USED&project={project.id}.",
            )

    def check_count(self, collection: Collection, path: str) -> None:
        """Compute's check of a quota that counts resources.

        Raises:
            ApiError: 403 quotaExceeded.
        """
        parts = path.split("/")
        project, region = self.world.project(parts[1]), parts[3] if parts[2] == "regions" else ""
        limit = project.quotas.get((collection.metric, region))
        if limit is None or self._count(collection, project, region) < limit:
            return
        where = f"in region {region}" if region else "globally"
        raise ApiError(
            403,
            f"Quota '{collection.metric}' exceeded.  Limit: {limit:.1f} {where}.",
            reason="quotaExceeded",
            info=("QUOTA_EXCEEDED", "compute.googleapis.com"),
            metadata={"metricName": collection.metric, "limit": str(limit)},
        )

    def quotas(self, project: Project, region: str) -> list[Body]:
        """Limits and usage as `regions.get` ('' for `projects.get`) shows them."""
        counted = {item.metric: item for item in COLLECTIONS.values() if item.metric}
        out = []
        for (metric, place), limit in project.quotas.items():
            if place == region:
                used = self._count(counted[metric], project, region) if metric in counted else self._gpus_in_use(project, metric, region)
                out.append({"metric": metric, "limit": limit, "usage": float(used)})
        return out

    def _count(self, collection: Collection, project: Project, region: str) -> int:
        paths = [path.split("/") for path, _ in self.world.of_kind(f"{collection.scope}/{collection.segment}", project.id)]
        return sum(1 for parts in paths if not region or parts[3] == region)

    def _take_reserved(self, shape: Shape) -> Shortage | None:
        entry = self.world.get(shape.reservation)
        block = self.world.get(shape.block) if shape.block else None
        if entry is None or self.free(entry) < 1 or (block and block.body["inUseCount"] >= block.body["count"]):
            message = f"Specified reservation '{leaf(shape.reservation)}' does not have available resources for the request."
            return Shortage("RESERVATION_INSUFFICIENT_CAPACITY", "GCE_STOCKOUT", message)
        self._count_reserved(shape, 1)
        return None

    def _count_reserved(self, shape: Shape, change: int) -> None:
        entry, block = self.world.get(shape.reservation), self.world.get(shape.block)
        if entry:
            specific = entry.body["specificReservation"]
            specific["inUseCount"] = str(int(specific["inUseCount"]) + change)
        if block:
            block.body["inUseCount"] += change

    def _running(self, machine: str, zone: str) -> int:
        shapes = [entry.extra["shape"] for _, entry in self.world.of_kind("zones/instances") if "shape" in entry.extra]
        return sum(1 for shape in shapes if (shape.machine, shape.zone) == (machine, zone) and not shape.reservation)

    def _gpus_in_use(self, project: Project, metric: str, region: str) -> int:
        shapes = [entry.extra["shape"] for _, entry in self.world.of_kind("zones/instances", project.id) if "shape" in entry.extra]
        return sum(shape.gpus for shape in shapes if shape.metric == metric and region_of(shape.zone) == region)
