"""Node pools: made with their groups, watched until their machines run or GKE gives up after 35 minutes."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.fakes.capacity import Shape
from tests.fakes.compute.links import link, region_of, resolve
from tests.fakes.errors import ApiError
from tests.fakes.gke.groups import Groups, zones_of
from tests.fakes.gke.operations import Operations, Running, numbered
from tests.fakes.gke.rules import GkeRules, bad
from tests.fakes.gke.surroundings import Surroundings
from tests.fakes.world import Body, Entry, World, leaf

#: GKE tries this long for machines before the operation fails.
PATIENCE = 35 * 60.0
#: Between two looks at the machines of a pool.
LOOK = 10.0
#: Virtual seconds of a pool without machines, of a deletion, of a setting.
EMPTY = 60.0
DELETE = 240.0
SETTING = 20.0


class Pools:
    """The node pools of all clusters."""

    def __init__(self, world: World, rules: GkeRules, groups: Groups, surroundings: Surroundings, operations: Operations) -> None:
        self.world = world
        self.rules = rules
        self.groups = groups
        self.surroundings = surroundings
        self.operations = operations

    def add(self, cluster: str, body: Body, *, automatic: bool = False) -> str:
        """A pool of `body` with its groups, still empty; returns its path.

        Raises:
            ApiError: Whatever GKE's rules refuse.
        """
        entry = self.world.resources[cluster]
        path = f"{cluster}/nodePools/{body.get('name', '')}"
        if self.world.get(path):
            raise ApiError(409, f"Already exists: {path}.")
        zones = zones_of(cluster.split("/")[3], body.get("locations") or entry.body["locations"])
        shape = self.rules.check_pool(entry, path, body, zones)
        project = self.world.project(path.split("/")[1])
        config = {
            "machineType": shape.machine,
            "diskSizeGb": 100,
            "diskType": "pd-balanced",
            "imageType": "COS_CONTAINERD",
            **body.get("config", {}),
        }
        config.setdefault("oauthScopes", ["https://www.googleapis.com/auth/cloud-platform"])
        full = {
            "initialNodeCount": 0,
            "management": {"autoUpgrade": True, "autoRepair": True},
            "version": entry.body["currentMasterVersion"],
            "podIpv4CidrSize": 24,
            **body,
            "config": config,
            "locations": zones,
            "status": "PROVISIONING",
            "selfLink": numbered(path, project.number),
        }
        pool = self.world.add(path, full, refs=set(), automatic=automatic)
        for zone in zones:
            self._group(cluster, entry, path, pool, dataclasses.replace(shape, zone=zone))
        return path

    def _group(self, cluster: str, entry: Entry, path: str, pool: Entry, shape: Shape) -> None:
        project, config, own = path.split("/")[1], pool.body["config"], pool.body.get("networkConfig", {})
        network, subnet = entry.extra["network"], entry.extra["subnet"]
        interfaces = [{"network": link(network), "subnetwork": link(subnet)}]
        refs = {item for item in (network, subnet) if self.world.get(item)}
        for item in own.get("additionalNodeNetworkConfigs", ()):
            more = resolve(self.world, project, item["network"], "global/networks")
            inner = resolve(self.world, project, item["subnetwork"], f"regions/{region_of(shape.zone)}/subnetworks")
            interfaces.append({"network": link(more), "subnetwork": link(inner)})
            refs |= {more, inner}
        if own.get("acceleratorNetworkProfile"):
            extra, paths = self.surroundings.accelerator_networks(cluster, entry, shape.zone, shape.machine)
            interfaces += extra
            refs |= paths
        node: Body = {}
        policy = pool.body.get("placementPolicy", {}).get("policyName")
        if policy:
            refs.add(f"projects/{project}/regions/{region_of(shape.zone)}/resourcePolicies/{policy}")
            node["resourcePolicies"] = [link(f"projects/{project}/regions/{region_of(shape.zone)}/resourcePolicies/{policy}")]
        if shape.gpus:
            item = config["accelerators"][0]
            kind = link(f"projects/{project}/zones/{shape.zone}/acceleratorTypes/{item['acceleratorType']}")
            node["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": shape.gpus}]
        node["scheduling"] = {"provisioningModel": _model(config, shape)}
        pool.extra["refs"] = refs
        labels = {"goog-k8s-cluster-name": leaf(cluster), "goog-k8s-node-pool-name": leaf(path), **config.get("resourceLabels", {})}
        manager = self.groups.make(path, shape, interfaces, refs, labels, node)
        pool.body.setdefault("instanceGroupUrls", []).append(link(manager))

    def fill(self, path: str) -> None:
        """Ask each group for the pool's initial machines."""
        for manager, _ in self.groups.of_pool(path):
            self.groups.resize(manager, self.world.resources[path].body["initialNodeCount"])

    def watch(self, item: Running, paths: list[str], done: Any, started: float) -> None:
        """Finish `item` once the machines of the pools run, or once GKE's patience ends."""
        missing = [path for path in paths if self._missing(path)]
        if missing and self.world.now() - started < PATIENCE:
            self.world.after(LOOK, lambda: self.watch(item, paths, done, started))
            return
        condition, message = self.groups.shortage(missing[0]) if missing else ("", "")
        for path in paths:
            entry = self.world.get(path)
            if entry is None:
                continue
            ran = any(self.groups.running(manager) for manager, _ in self.groups.of_pool(path))
            entry.body["status"] = "RUNNING" if path not in missing else "RUNNING_WITH_ERROR" if ran else "ERROR"
            if path in missing:
                self.mark(path, message, condition)
        done(bool(missing), message)
        self.operations.finish(item, "RESOURCE_EXHAUSTED" if condition else "INTERNAL" if missing else "", message, condition)

    def mark(self, path: str, message: str, condition: str = "") -> None:
        """Put a fault on a pool."""
        body = self.world.resources[path].body
        body["statusMessage"] = message
        if condition:
            body["conditions"] = [{"code": condition, "canonicalCode": "RESOURCE_EXHAUSTED", "message": message}]

    def create(self, cluster: str, body: Body, method: str) -> Running:
        """Begin CREATE_NODE_POOL."""
        if self.world.resources[cluster].body.get("autopilot", {}).get("enabled"):
            raise bad("Autopilot clusters do not support mutating node pools.")
        if f"{cluster}/nodePools/{body.get('name', '')}" in self.world.resources:
            raise ApiError(409, f"Already exists: {cluster}/nodePools/{body['name']}.")
        self.operations.guard(cluster, f"{cluster}/nodePools/{body.get('name', '')}")
        path = self.add(cluster, body)
        item = self.operations.start("CREATE_NODE_POOL", cluster, path)
        started = self.world.now()

        def failed(message: str) -> None:
            self.world.resources[path].body["status"] = "ERROR"
            self.mark(path, message)

        def filling() -> None:
            self.fill(path)
            self.watch(item, [path], lambda missing, message: None, started)

        self.operations.later(item, method, EMPTY, filling, failed)
        return item

    def delete(self, path: str, method: str) -> Running:
        """Begin DELETE_NODE_POOL: machines stop, the pool goes at the end."""
        cluster = path.split("/nodePools/")[0]
        if self.world.resources[cluster].body.get("autopilot", {}).get("enabled"):
            raise bad("Autopilot clusters do not support mutating node pools.")
        self.operations.guard(cluster, path)
        entry = self.world.resources[path]
        before, entry.body["status"] = entry.body["status"], "STOPPING"
        item = self.operations.start("DELETE_NODE_POOL", cluster, path)
        for manager, _ in self.groups.of_pool(path):
            self.groups.resize(manager, 0)

        def kept(message: str) -> None:
            entry.body["status"] = before
            self.mark(path, message)

        def gone() -> None:
            self.drop(path)
            self.operations.finish(item)

        self.operations.later(item, method, DELETE, gone, kept)
        return item

    def drop(self, path: str) -> None:
        """Remove a pool, its groups and machines, now."""
        self.groups.drop(path)
        self.world.remove(path)

    def set(self, path: str, kind: str, method: str, change: Any) -> Running:
        """Begin an operation that changes a setting of a pool; `change` is done at its end."""
        cluster = path.split("/nodePools/")[0]
        self.operations.guard(cluster, path)
        item = self.operations.start(kind, cluster, path)

        def effect() -> None:
            change()
            self.operations.finish(item)

        self.operations.later(item, method, SETTING, effect, lambda message: None)
        return item

    def resize(self, path: str, size: int, method: str) -> Running:
        """Begin SET_NODE_POOL_SIZE: `size` machines in each zone."""
        cluster = path.split("/nodePools/")[0]
        self.operations.guard(cluster, path)
        entry = self.world.resources[path]
        entry.body["status"] = "RECONCILING"
        item = self.operations.start("SET_NODE_POOL_SIZE", cluster, path)
        started = self.world.now()

        def failed(message: str) -> None:
            entry.body["status"] = "RUNNING_WITH_ERROR"
            self.mark(path, message)

        def effect() -> None:
            for manager, _ in self.groups.of_pool(path):
                self.groups.resize(manager, size)
            self.watch(item, [path], lambda missing, message: None, started)

        self.operations.later(item, method, SETTING, effect, failed)
        return item

    def scale(self, path: str, nodes: int) -> None:
        """What the cluster autoscaler does: bring the whole pool to `nodes`, first zones first, within its limits.

        Raises:
            ValueError: Where the autoscaler would not: it is off, or the number is outside its limits.
        """
        entry = self.world.resources[path]
        scaling, groups = entry.body.get("autoscaling", {}), self.groups.of_pool(path)
        most = scaling.get("totalMaxNodeCount", scaling.get("maxNodeCount", 0) * len(groups))
        if not scaling.get("enabled") or nodes > most:
            raise ValueError(f"the autoscaler cannot bring {path} to {nodes} nodes: {scaling}")
        each, more = divmod(nodes, len(groups)) if scaling.get("locationPolicy") != "ANY" else (0, 0)
        for index, (manager, _) in enumerate(groups):
            size = each + (index < more) if scaling.get("locationPolicy") != "ANY" else (nodes if index == 0 else 0)
            self.groups.resize(manager, size)

    def _missing(self, path: str) -> bool:
        return any(self.groups.running(manager) < entry.body["targetSize"] for manager, entry in self.groups.of_pool(path)) or any(
            len(self.groups.machines(manager)) > entry.body["targetSize"] for manager, entry in self.groups.of_pool(path)
        )


def _model(config: Body, shape: Shape) -> str:
    if config.get("spot"):
        return "SPOT"
    if config.get("flexStart"):
        return "FLEX_START"
    return "RESERVATION_BOUND" if shape.reservation else "STANDARD"
