"""The fake of the GKE API."""

from __future__ import annotations

import re

from tests.fakes.capacity import GPUS, Capacity
from tests.fakes.compute.service import ComputeFake
from tests.fakes.errors import ApiError
from tests.fakes.faults import Faults
from tests.fakes.gke.clusters import SERVER, fresh_cluster
from tests.fakes.gke.groups import Groups
from tests.fakes.gke.operations import Operations, Running
from tests.fakes.gke.pools import SETTING, Pools
from tests.fakes.gke.rules import DRANET_LABEL, GkeRules
from tests.fakes.gke.surroundings import Surroundings
from tests.fakes.schemas import discovery
from tests.fakes.service import Request, Service, Shared
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, Entry, World, leaf

#: Virtual seconds: to surrounding resources, to a control plane that runs, of a deletion.
SURROUND = 60.0
CREATE = 540.0
DELETE = 300.0
_CLUSTERS = "container.projects.locations.clusters"


class ContainerFake(Service):
    """Clusters, node pools and their operations.

    Attributes:
        endpoint: `HOST[:PORT]` of every cluster's API server, '' for an invented address.
        dns_endpoint: Name of every cluster's DNS endpoint, '' for an invented one.
        ca_certificate: PEM of the API server's CA.
    """

    name = "container"

    def __init__(
        self, world: World, tokens: Tokens, shared: Shared, compute: ComputeFake, capacity: Capacity, operation_faults: Faults
    ) -> None:
        super().__init__(world, tokens, shared, discovery("container.v1"))
        self.compute = compute
        self.operations = Operations(world, operation_faults)
        self.groups = Groups(world, compute, capacity)
        self.surroundings = Surroundings(world, compute)
        self.rules = GkeRules(world, compute.rules, capacity)
        self.pools = Pools(world, self.rules, self.groups, self.surroundings, self.operations)
        self.endpoint = ""
        self.dns_endpoint = ""
        self.ca_certificate = "-----BEGIN CERTIFICATE-----\nZmFrZQ==\n-----END CERTIFICATE-----\n"
        self.handlers |= {
            f"{_CLUSTERS}.create": self._create,
            f"{_CLUSTERS}.get": lambda request: self._view(self._cluster(request)),
            f"{_CLUSTERS}.list": self._list,
            f"{_CLUSTERS}.delete": self._delete,
            f"{_CLUSTERS}.setResourceLabels": self._set_labels,
            f"{_CLUSTERS}.nodePools.create": lambda request: (
                self.pools.create(self._cluster(request), request.body.get("nodePool", {}), request.method).body
            ),
            f"{_CLUSTERS}.nodePools.get": lambda request: self.world.resources[self._pool(request)].body,
            f"{_CLUSTERS}.nodePools.list": lambda request: {"nodePools": self._pools(self._cluster(request))},
            f"{_CLUSTERS}.nodePools.delete": lambda request: self.pools.delete(self._pool(request), request.method).body,
            f"{_CLUSTERS}.nodePools.setSize": lambda request: (
                self.pools.resize(self._pool(request), request.body.get("nodeCount", 0), request.method).body
            ),
            f"{_CLUSTERS}.nodePools.setAutoscaling": self._set_autoscaling,
            "container.projects.locations.getServerConfig": lambda request: SERVER,
            "container.projects.locations.operations.get": lambda request: self.operations.get(self._path(request)),
            "container.projects.locations.operations.list": lambda request: {
                "operations": self.operations.within(self.world.project(request.at["projectsId"]).id, request.at["locationsId"])
            },
        }

    def scale(self, cluster: str, pool: str, nodes: int) -> None:
        """Play the cluster autoscaler: bring the pool to `nodes` in virtual time. On Autopilot an empty pool then goes."""
        with self.world.lock:
            path = f"{self._named(cluster)}/nodePools/{pool}"
            self.pools.scale(path, nodes)
            if nodes == 0 and self.world.resources[path].extra["automatic"]:
                self.world.after(600, lambda: self._sweep(path))

    def provision(self, cluster: str, machine: str, zone: str, nodes: int, *, config: Body | None = None, dranet: bool = True) -> str:
        """Play node pool auto-creation for a ComputeClass: a pool `nap-…` with `nodes` machines; returns its name."""
        with self.world.lock:
            path = self._named(cluster)
            accelerators = (
                [{"acceleratorType": gpu, "acceleratorCount": count} for gpu, count in [GPUS[machine]]] if machine in GPUS else []
            )
            body: Body = {
                "name": f"nap-{machine[:20]}-{self.world.id(path)[:8]}",
                "locations": [zone],
                "initialNodeCount": nodes,
                "autoscaling": {"enabled": True, "totalMaxNodeCount": 1000, "locationPolicy": "ANY"},
                "config": {"machineType": machine, "labels": {DRANET_LABEL: "true"}, **(config or {})},
            }
            if accelerators:
                body["config"]["accelerators"] = accelerators
            if dranet and accelerators:
                body["networkConfig"] = {"acceleratorNetworkProfile": "auto"}
            pool = self.pools.add(path, body, automatic=True)
            self.world.resources[pool].body["status"] = "RUNNING"
            self.pools.fill(pool)
            return leaf(pool)

    def busy(self, cluster: str, seconds: float, kind: str = "UPGRADE_MASTER") -> str:
        """Play an operation that GKE starts by itself and that bars all others; returns its name."""
        with self.world.lock:
            item = self.operations.start(kind, self._named(cluster))
            self.world.after(seconds, lambda: self.operations.finish(item))
            return str(item.body["name"])

    def nodes(self, cluster: str, pool: str) -> list[str]:
        """Names of the machines of a pool that run now."""
        with self.world.lock:
            self.world.settle()
            managers = self.groups.of_pool(f"{self._named(cluster)}/nodePools/{pool}")
            return [
                leaf(path) for manager, _ in managers for path, item in self.groups.machines(manager) if item.body["status"] == "RUNNING"
            ]

    def _sweep(self, path: str) -> None:
        if path in self.world.resources and not any(self.groups.machines(manager) for manager, _ in self.groups.of_pool(path)):
            self.pools.drop(path)

    def _named(self, cluster: str) -> str:
        return next(path for path, _ in self.world.of_kind("locations/clusters") if leaf(path) == cluster)

    def _path(self, request: Request) -> str:
        parts = re.sub(r":\w+$", "", request.path).removeprefix("v1/").split("/")
        parts[1] = self.world.project(parts[1]).id
        return "/".join(parts)

    def _cluster(self, request: Request) -> str:
        path = "/".join(self._path(request).split("/")[:6])
        if path not in self.world.resources:
            raise ApiError(404, f"Not found: {path}.")
        return path

    def _pool(self, request: Request) -> str:
        self._cluster(request)
        path = self._path(request)
        if path not in self.world.resources:
            raise ApiError(404, f"Not found: {path}.")
        return path

    def _pools(self, cluster: str) -> list[Body]:
        return [entry.body for _, entry in self.world.children(f"{cluster}/nodePools")]

    def _view(self, path: str) -> Body:
        pools = self._pools(path)
        groups = [self.groups.of_pool(f"{path}/nodePools/{pool['name']}") for pool in pools]
        nodes = sum(self.groups.running(manager) for group in groups for manager, _ in group)
        urls = [url for pool in pools for url in pool.get("instanceGroupUrls", ())]
        return self.world.resources[path].body | {"nodePools": pools, "currentNodeCount": nodes, "instanceGroupUrls": urls}

    def _list(self, request: Request) -> Body:
        project, location = self.world.project(request.at["projectsId"]).id, request.at["locationsId"]
        paths = [path for path, _ in self.world.of_kind("locations/clusters", project) if location in ("-", path.split("/")[3])]
        return {"clusters": [self._view(path) for path in paths]} if paths else {}

    def _create(self, request: Request) -> Body:
        project, location = self.world.project(request.at["projectsId"]), request.at["locationsId"]
        body = dict(request.body.get("cluster", {}))
        path = f"projects/{project.id}/locations/{location}/clusters/{body.get('name', '')}"
        if path in self.world.resources:
            raise ApiError(409, f"Already exists: {path}.")
        network, subnet = self.rules.check_cluster(project.id, location, body)
        autopilot = body.get("autopilot", {}).get("enabled", False)
        wanted = body.pop("nodePools", None) or [{"name": "default-pool", "initialNodeCount": body.pop("initialNodeCount", 1)}]
        entry = self.world.add(path, self._fresh(path, body, network, subnet), network=network, subnet=subnet)
        entry.extra["refs"] = {item for item in (network, subnet) if self.world.get(item)}
        if autopilot:
            wanted = [
                {
                    "name": "default-pool",
                    "initialNodeCount": 1,
                    "locations": entry.body["locations"][:1],
                    "config": {"machineType": "ek-standard-8"},
                }
            ]
        try:
            pools = [self.pools.add(path, pool) for pool in wanted]
        except ApiError:
            self._forget(path)
            raise
        item = self.operations.start("CREATE_CLUSTER", path)
        self._bring_up(item, path, entry, pools, request.method)
        return item.body

    def _bring_up(self, item: Running, path: str, entry: Entry, pools: list[str], method: str) -> None:
        def surround() -> None:
            if entry.body.get("workloadIdentityConfig", {}).get("workloadPool"):
                self.world.project(path.split("/")[1]).identity_pool = True
            self.surroundings.make(path, entry)
            for pool in pools:
                self.pools.fill(pool)

        def up(missing: bool, message: str) -> None:
            entry.body["status"] = "ERROR" if missing else "RUNNING"
            if missing:
                entry.body["statusMessage"] = message

        def failed(message: str) -> None:
            entry.body.update(status="ERROR", statusMessage=message)

        started = self.world.now() + SURROUND
        self.world.after(SURROUND, surround)
        self.operations.later(item, method, CREATE, lambda: self.pools.watch(item, pools, up, started), failed)

    def _fresh(self, path: str, body: Body, network: str, subnet: str) -> Body:
        return fresh_cluster(self.world, path, body, network, subnet, self.endpoint, self.dns_endpoint, self.ca_certificate)

    def _delete(self, request: Request) -> Body:
        path = self._cluster(request)
        self.operations.guard(path)
        entry = self.world.resources[path]
        before, entry.body["status"] = entry.body["status"], "STOPPING"
        item = self.operations.start("DELETE_CLUSTER", path)

        def kept(message: str) -> None:
            entry.body.update(status=before, statusMessage=message)

        def gone() -> None:
            self.surroundings.unmake(path, entry)
            self._forget(path)
            self.operations.finish(item)

        self.operations.later(item, request.method, DELETE, gone, kept)
        return item.body

    def _forget(self, path: str) -> None:
        for pool, _ in list(self.world.children(f"{path}/nodePools")):
            self.pools.drop(pool)
        self.world.remove(path)

    def _set_labels(self, request: Request) -> Body:
        path = self._cluster(request)
        self.operations.guard(path)
        item = self.operations.start("SET_LABELS", path)

        def effect() -> None:
            self.world.resources[path].body["resourceLabels"] = request.body.get("resourceLabels", {})
            self.operations.finish(item)

        self.operations.later(item, request.method, SETTING, effect, lambda message: None)
        return item.body

    def _set_autoscaling(self, request: Request) -> Body:
        path, scaling = self._pool(request), request.body.get("autoscaling", {})

        def change() -> None:
            self.world.resources[path].body["autoscaling"] = scaling

        self.rules.check_autoscaling({"autoscaling": scaling})
        return self.pools.set(path, "SET_NODE_POOL_MANAGEMENT", request.method, change).body
