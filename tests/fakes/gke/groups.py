"""Instance groups and instances of node pools: they grow in virtual time, as far as stock, reservation and quota allow."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.fakes.capacity import Capacity, Shape
from tests.fakes.compute.collections import COLLECTIONS
from tests.fakes.compute.links import ZONE, link
from tests.fakes.compute.rules import Rules
from tests.fakes.compute.service import ComputeFake
from tests.fakes.world import Body, Entry, World, leaf

#: Virtual seconds from asking for a machine to the first answer, between tries after a stockout, and to a machine that runs.
FIRST_TRY = 30.0
RETRY = 240.0
BOOT = 45.0
BOOT_GPU = 150.0
STOP = 60.0


class Groups:
    """The instance groups of all node pools.

    Attributes:
        nic_release: Virtual seconds for which a RoCE network stays in use after the last machine left it.
    """

    def __init__(self, world: World, compute: ComputeFake, capacity: Capacity) -> None:
        self.world = world
        self.compute = compute
        self.capacity = capacity
        self.rules: Rules = compute.rules
        self.nic_release = 480.0

    def make(self, pool: str, shape: Shape, interfaces: list[Body], refs: set[str], labels: dict[str, str], node: Body) -> str:
        """An empty group for `pool` in the zone of `shape`; returns its manager's path."""
        parts = pool.split("/")
        project, cluster, name = parts[1], parts[5], parts[7]
        base = f"gke-{cluster[:20].rstrip('-')}-{name[:20].rstrip('-')}-{self.world.id(pool, shape.zone)[:8]}"
        path = f"projects/{project}/zones/{shape.zone}/instanceGroupManagers/{base}-grp"
        group = path.replace("/instanceGroupManagers/", "/instanceGroups/")
        body = {
            "name": f"{base}-grp",
            "baseInstanceName": base,
            "targetSize": 0,
            "instanceGroup": link(group),
            "instanceTemplate": link(f"projects/{project}/global/instanceTemplates/{base}"),
            "status": {"isStable": True},
        }
        extra: dict[str, Any] = {
            "pool": pool,
            "shape": shape,
            "nics": interfaces,
            "machine_refs": refs,
            "labels": labels,
            "node": node,
            "errors": [],
        }
        self.compute.put(COLLECTIONS["instanceGroupManagers"], path, body, set(), **extra)
        self.compute.put(COLLECTIONS["instanceGroups"], group, {"name": f"{base}-grp", "size": 0}, set(), pool=pool)
        return path

    def of_pool(self, pool: str) -> list[tuple[str, Entry]]:
        return [(path, entry) for path, entry in self.world.of_kind("zones/instanceGroupManagers") if entry.extra.get("pool") == pool]

    def machines(self, manager: str) -> list[tuple[str, Entry]]:
        return [(path, entry) for path, entry in self.world.of_kind("zones/instances") if entry.extra.get("manager") == manager]

    def running(self, manager: str) -> int:
        return sum(1 for _, entry in self.machines(manager) if entry.body["status"] == "RUNNING")

    def resize(self, manager: str, size: int) -> None:
        """Ask for `size` machines: surplus ones stop, missing ones are tried for until they are there."""
        entry = self.world.resources[manager]
        entry.body["targetSize"] = size
        alive = [path for path, machine in self.machines(manager) if machine.body["status"] != "STOPPING"]
        for path in alive[size:]:
            self._stop(path)
        if len(alive) < size and not entry.extra.get("trying"):
            entry.extra["trying"] = True
            self.world.after(FIRST_TRY, lambda: self._try(manager))
        self._tell(manager)

    def drop(self, pool: str) -> None:
        """Remove the groups of a pool and every machine in them, now."""
        for path, entry in self.of_pool(pool):
            entry.body["targetSize"] = 0
            for machine, _ in self.machines(path):
                self._gone(machine)
            self.world.remove(path)
            self.world.remove(path.replace("/instanceGroupManagers/", "/instanceGroups/"))

    def shortage(self, pool: str) -> tuple[str, str]:
        """GKE's condition and message for a pool that did not come up, ('', '') where nothing is short."""
        want = sum(entry.body["targetSize"] for _, entry in self.of_pool(pool))
        have = sum(self.running(path) for path, _ in self.of_pool(pool))
        errors = [error for _, entry in self.of_pool(pool) for error in entry.extra["errors"]]
        if not errors:
            return "", f"Google Compute Engine: Not all instances running in IGM after 35m. Expected {want}, running {have}."
        last = errors[-1]
        code = "GCE_QUOTA_EXCEEDED" if last["error"]["code"] == "QUOTA_EXCEEDED" else "GCE_STOCKOUT"
        instance = leaf(last["instanceActionDetails"]["instance"])
        return code, (
            f"Google Compute Engine: Not all instances running in IGM after 35m. Expected {want}, running {have}, "
            f"transitioning {want - have}. "
            f"Current errors: [{code}]: Instance '{instance}' creation failed: {last['error']['message']}"
        )

    def _try(self, manager: str) -> None:
        entry = self.world.get(manager)
        if entry is None:
            return
        project = self.world.project(manager.split("/")[1])
        shape: Shape = entry.extra["shape"]
        while len([1 for _, item in self.machines(manager) if item.body["status"] != "STOPPING"]) < entry.body["targetSize"]:
            name = f"{entry.body['baseInstanceName']}-{self.world.id(manager)[:4]}"
            path = f"projects/{project.id}/zones/{shape.zone}/instances/{name}"
            short = self.capacity.take(project, shape)
            if short:
                entry.extra["errors"].append(
                    {
                        "error": {"code": short.code, "message": short.message},
                        "instanceActionDetails": {"instance": link(path), "action": "CREATING"},
                        "timestamp": self.world.stamp(),
                    }
                )
                self.world.after(RETRY, lambda: self._try(manager))
                self._tell(manager)
                return
            self._start(manager, entry, path)
        entry.extra["trying"] = False
        self._tell(manager)

    def _start(self, manager: str, group: Entry, path: str) -> None:
        shape: Shape = group.extra["shape"]
        body = {
            "name": leaf(path),
            "status": "STAGING",
            "machineType": link(f"{path.split('/instances/')[0]}/machineTypes/{shape.machine}"),
            "networkInterfaces": group.extra["nics"],
            "labels": group.extra["labels"],
            **group.extra["node"],
        }
        refs = group.extra["machine_refs"]
        machine = self.compute.put(COLLECTIONS["instances"], path, body, refs, manager=manager, shape=dataclasses.replace(shape))

        def booted() -> None:
            if machine.body["status"] == "STAGING":
                machine.body["status"] = "RUNNING"
            self._tell(manager)

        self.world.after(BOOT_GPU if shape.gpus else BOOT, booted)

    def _stop(self, path: str) -> None:
        self.world.resources[path].body["status"] = "STOPPING"
        self.world.after(STOP, lambda: self._gone(path))

    def _gone(self, path: str) -> None:
        entry = self.world.get(path)
        if entry is None:
            return
        self.world.remove(path)
        self.capacity.give_back(entry.extra["shape"])
        networks = {ref for ref in entry.extra["refs"] if "/networks/" in ref and self.rules.roce_zone(ref)}
        subnets = {ref for ref in entry.extra["refs"] if "/subnetworks/" in ref and self._network(ref) in networks}
        if networks:
            zone = entry.extra["shape"].zone
            hidden = f"projects/{path.split('/')[1]}/zones/{zone}/networkInstances/{self.world.id(path)[:16]}"
            self.world.add(hidden, {}, refs=networks | subnets, hidden=True)
            self.world.after(self.nic_release, lambda: self.world.remove(hidden))
        self._tell(entry.extra["manager"])

    def _network(self, subnet: str) -> str:
        entry = self.world.get(subnet)
        return entry.body["network"].partition("/compute/v1/")[2] if entry else ""

    def _tell(self, manager: str) -> None:
        """Bring the group's own figures up to date."""
        entry = self.world.get(manager)
        if entry is None:
            return
        machines = self.machines(manager)
        missing = max(0, entry.body["targetSize"] - len(machines))
        entry.body["currentActions"] = {"creating": missing, "none": self.running(manager), "deleting": 0}
        entry.body["status"] = {"isStable": self.running(manager) == entry.body["targetSize"] == len(machines)}
        self.world.resources[entry.body["instanceGroup"].partition("/compute/v1/")[2]].body["size"] = len(machines)


def zones_of(location: str, zones: list[str]) -> list[str]:
    """The zones of a pool: those given, else three of the region, or the zone itself."""
    if zones:
        return zones
    return [location] if ZONE.fullmatch(location) else [f"{location}-{letter}" for letter in "abc"]
