"""The fake of the Service Networking API: private services access."""

from __future__ import annotations

import re

from tests.fakes.compute.links import resolve
from tests.fakes.errors import ApiError, not_found
from tests.fakes.faults import Faults
from tests.fakes.lro import EMPTY, LongRunning
from tests.fakes.schemas import discovery
from tests.fakes.service import Request, Service, Shared
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, Entry, World

SERVICE = "servicenetworking.googleapis.com"
PEERING = "servicenetworking-googleapis-com"
CREATE = 60.0
DELETE = 30.0
_P = "servicenetworking.services.connections"


class ServiceNetworkingFake(Service):
    """Connections of networks to Google's producers.

    Attributes:
        linger: Virtual seconds for which a connection counts as used after its last producer went.
    """

    name = "servicenetworking"

    def __init__(self, world: World, tokens: Tokens, shared: Shared, operation_faults: Faults) -> None:
        super().__init__(world, tokens, shared, discovery("servicenetworking.v1"))
        self.operations = LongRunning(world, operation_faults)
        self.linger = 300.0
        self.handlers |= {
            f"{_P}.create": self._create,
            f"{_P}.list": self._list,
            f"{_P}.patch": self._patch,
            f"{_P}.deleteConnection": self._delete,
            "servicenetworking.operations.get": lambda request: self.operations.get(request.path.removeprefix("v1/")),
        }

    def _network(self, value: str) -> tuple[str, Entry]:
        found = re.fullmatch(r"projects/(\d+)/global/networks/[^/]+", value)
        if not found:
            raise ApiError(400, f"Invalid network '{value}': must be projects/{{project_number}}/global/networks/{{network}}.")
        path = resolve(self.world, found[1], value)
        entry = self.world.get(path)
        if entry is None:
            raise not_found(path)
        return path, entry

    def _check_service(self, request: Request) -> None:
        if request.at["servicesId"] != SERVICE:
            raise ApiError(404, f"Service '{request.at['servicesId']}' was not found.")
        if request.at.get("connectionsId", PEERING) not in (PEERING, "-"):
            raise ApiError(404, f"Connection '{request.at['connectionsId']}' was not found.")

    def _operation(self, request: Request, target: str, seconds: float, effect: object) -> Body:
        number = self.world.project(target.split("/")[1]).number
        name = f"operations/pssn.p24-{number}-{self.world.id(target)[:32]}"
        return self.operations.start(request.method, name, target, seconds, effect)  # type: ignore[arg-type]

    def _missing(self, network: str, ranges: list[str]) -> ApiError | None:
        project = network.split("/")[1]
        for name in ranges:
            entry = self.world.get(f"projects/{project}/global/addresses/{name}")
            good = entry and entry.body.get("purpose") == "VPC_PEERING" and entry.body.get("network", "").endswith(network)
            if not good:
                return _failed(f"Allocated IP range '{name}' not found in network.")
        return None

    def _create(self, request: Request) -> Body:
        self._check_service(request)
        network, entry = self._network(request.body.get("network", ""))
        ranges = list(request.body.get("reservedPeeringRanges", ()))
        path = f"{network}/connections/{PEERING}"

        def made() -> Body | ApiError:
            missing = self._missing(network, ranges)
            old = self.world.get(path)
            if missing or not ranges:
                return missing or _failed("Must specify at least one allocated IP range.")
            if old and old.body["reservedPeeringRanges"] != ranges:
                has = old.body["reservedPeeringRanges"]
                return _failed(
                    f"Cannot modify allocated ranges in CreateConnection. Please use UpdateConnection.\nExisting allocated IP ranges: {has}"
                )
            if not old:
                body = {
                    "network": request.body["network"],
                    "peering": PEERING,
                    "service": f"services/{SERVICE}",
                    "reservedPeeringRanges": ranges,
                }
                self.world.add(path, body, refs=set(), hidden=False)
                peer = {
                    "name": PEERING,
                    "network": "https://www.googleapis.com/compute/v1/projects/g-tenant/global/networks/servicenetworking",
                    "state": "ACTIVE",
                    "exchangeSubnetRoutes": True,
                    "autoCreateRoutes": True,
                }
                entry.body.setdefault("peerings", []).append(peer)
            return {"@type": "type.googleapis.com/google.cloud.servicenetworking.v1.Connection", **self.world.resources[path].body}

        return self._operation(request, network, CREATE, made)

    def _list(self, request: Request) -> Body:
        self._check_service(request)
        network, _ = self._network(request.query.get("network", ""))
        return {"connections": [entry.body for _, entry in self.world.children(f"{network}/connections")]}

    def _patch(self, request: Request) -> Body:
        self._check_service(request)
        network, _ = self._network(request.body.get("network", ""))
        path, ranges = f"{network}/connections/{PEERING}", list(request.body.get("reservedPeeringRanges", ()))

        def changed() -> Body | ApiError:
            entry = self.world.get(path)
            if entry is None:
                return ApiError(404, "Connection not found.")
            missing = self._missing(network, ranges)
            if missing:
                return missing
            removed = set(entry.body["reservedPeeringRanges"]) - set(ranges)
            if removed and request.query.get("force", "").lower() != "true":
                return _failed(f"Cannot remove allocated ranges {sorted(removed)} without force.")
            entry.body["reservedPeeringRanges"] = ranges
            return {"@type": "type.googleapis.com/google.cloud.servicenetworking.v1.Connection", **entry.body}

        return self._operation(request, network, CREATE, changed)

    def _delete(self, request: Request) -> Body:
        self._check_service(request)
        network, entry = self._network(request.body.get("consumerNetwork", ""))
        path = f"{network}/connections/{PEERING}"
        if self.world.get(path) is None:
            raise ApiError(404, f"Connection '{PEERING}' of network '{network}' was not found.")

        def gone() -> Body | ApiError:
            left = entry.extra.get("producer_left")
            producers = [item for _, item in self.world.of_kind("locations/instances") if item.extra["network"] == network]
            if producers or (left is not None and self.world.now() - left < self.linger):
                return _failed(
                    "Failed to delete connection; Producer services (e.g. CloudSQL, Cloud Memstore, etc.) are still using this connection."
                )
            self.world.remove(path)
            entry.body["peerings"] = [item for item in entry.body.get("peerings", ()) if item["name"] != PEERING]
            return EMPTY

        return self._operation(request, network, DELETE, gone)


def _failed(message: str) -> ApiError:
    """What an operation carries: code 9, FAILED_PRECONDITION."""
    return ApiError(400, message, status="FAILED_PRECONDITION")
