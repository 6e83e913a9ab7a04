"""The fake of the Managed Lustre API. No discovery document of it is installed: its messages' descriptors are the schema."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.compute.links import ZONE, resolve
from tests.fakes.compute.listing import page
from tests.fakes.errors import ApiError
from tests.fakes.faults import Faults
from tests.fakes.lro import EMPTY, LongRunning
from tests.fakes.schemas import GLOBAL_QUERY, Route
from tests.fakes.service import Request, Service, Shared
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, World

#: Smallest capacity and step in GiB, by MB/s per TiB.
STEPS = {1000: 9000, 500: 18000, 250: 36000, 125: 72000}
MOST_GIB = 954_000
CREATE = 560.0
DELETE = 300.0
_OUTPUT_ONLY = ("state", "mountPoint", "createTime", "updateTime", "stateReason", "uid")
_P = "lustre.projects.locations"


def _route(method: str, verb: str, path: str, request: str = "", query: tuple[str, ...] = ()) -> Route:
    return Route(f"{_P}.{method}", verb, tuple(path.split("/")), request, {name: {} for name in query})


_INSTANCES = "v1/projects/{projectsId}/locations/{locationsId}/instances"
_OPERATIONS = "v1/projects/{projectsId}/locations/{locationsId}/operations"
_LIST = ("pageSize", "pageToken", "filter", "orderBy")
ROUTES = (
    _route("instances.create", "POST", _INSTANCES, "Instance", ("instanceId", "requestId")),
    _route("instances.list", "GET", _INSTANCES, query=_LIST),
    _route("instances.get", "GET", _INSTANCES + "/{instancesId}"),
    _route("instances.delete", "DELETE", _INSTANCES + "/{instancesId}", query=("requestId",)),
    _route("operations.list", "GET", _OPERATIONS, query=(*_LIST, "name", "returnPartialSuccess")),
    _route("operations.get", "GET", _OPERATIONS + "/{operationsId}"),
)


class LustreApi:
    """Routes as google-cloud-lustre's REST transport has them, bodies as its descriptors."""

    base = ""

    def route(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
        segments = path.split("/")
        for route in ROUTES:
            if route.verb == verb and len(route.template) == len(segments):
                variables = route.match(segments)
                if variables is not None:
                    return route, variables
        return None

    def check_query(self, route: Route, query: dict[str, str]) -> None:
        for name in query:
            if name not in route.query and name not in GLOBAL_QUERY | {"alt", "fields", "key", "prettyPrint"}:
                raise ApiError(400, f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.')

    def check_body(self, route: Route, body: Any) -> dict[str, Any]:
        from google.cloud import lustre_v1
        from google.protobuf import json_format

        if not route.request:
            return {}
        try:
            message = json_format.ParseDict(body, getattr(lustre_v1, route.request).pb()())
        except json_format.ParseError as error:
            raise ApiError(400, f"Invalid JSON payload received. {error}") from error
        checked: dict[str, Any] = json_format.MessageToDict(message)
        return {name: value for name, value in checked.items() if name not in _OUTPUT_ONLY}


class LustreFake(Service):
    """Instances and their operations."""

    name = "lustre"

    def __init__(self, world: World, tokens: Tokens, shared: Shared, operation_faults: Faults) -> None:
        super().__init__(world, tokens, shared, LustreApi())
        self.operations = LongRunning(world, operation_faults)
        self._requests: dict[str, str] = {}
        self.handlers |= {
            f"{_P}.instances.create": self._create,
            f"{_P}.instances.get": lambda request: self._entry(self._path(request)).body,
            f"{_P}.instances.list": self._list,
            f"{_P}.instances.delete": self._delete,
            f"{_P}.operations.get": lambda request: self.operations.get(self._path(request)),
            f"{_P}.operations.list": lambda request: {
                "operations": [body for name, body in self.operations.bodies.items() if name.startswith(self._path(request))]
            },
        }

    def _path(self, request: Request) -> str:
        parts = request.path.removeprefix("v1/").split("/")
        parts[1] = self.world.project(parts[1]).id
        return "/".join(parts)

    def _entry(self, path: str) -> Any:
        entry = self.world.get(path)
        if entry is None:
            raise ApiError(404, f"Resource '{path}' was not found")
        return entry

    def _list(self, request: Request) -> Body:
        parent, project = self._path(request), request.at["projectsId"]
        every = self.world.of_kind("locations/instances", self.world.project(project).id)
        wanted = [entry.body for path, entry in every if request.at["locationsId"] == "-" or path.startswith(f"{parent}/")]
        shown, token = page(wanted, request.query)
        return {"instances": shown} | ({"nextPageToken": token} if token else {})

    def _again(self, request: Request) -> Body | None:
        name = self._requests.get(request.query.get("requestId", ""))
        return self.operations.bodies[name] if name else None

    def _operation(self, request: Request, target: str, verb: str, seconds: float, effect: Any, undo: Any) -> Body:
        project, zone = target.split("/")[1], target.split("/")[3]
        name = f"projects/{project}/locations/{zone}/operations/operation-{self.world.id(target)[:32]}"
        metadata = {
            "@type": "type.googleapis.com/google.cloud.lustre.v1.OperationMetadata",
            "target": target,
            "verb": verb,
            "apiVersion": "v1",
            "requestedCancellation": False,
        }
        if request.query.get("requestId"):
            self._requests[request.query["requestId"]] = name
        return self.operations.start(request.method, name, target, seconds, effect, undo, metadata)

    def _create(self, request: Request) -> Body:
        again = self._again(request)
        if again:
            return again
        name, body = request.query.get("instanceId", ""), request.body
        path = f"{self._path(request)}/{name}"
        if self.world.get(path):
            raise ApiError(409, f"Resource '{path}' already exists")
        network = self._check(name, request.at["locationsId"], path, body)
        number = self.world.serial()
        full = {
            **body,
            "name": path,
            "state": "CREATING",
            "createTime": self.world.stamp(),
            "updateTime": self.world.stamp(),
            "mountPoint": f"10.{100 + number % 100}.0.2@tcp:/{body['filesystem']}",
            "uid": self.world.id(path)[:32],
        }
        entry = self.world.add(path, full, busy="creating", refs={network}, network=network)

        def made() -> Body:
            entry.busy = ""
            entry.body["state"] = "ACTIVE"
            return {"@type": "type.googleapis.com/google.cloud.lustre.v1.Instance", **entry.body}

        def failed(error: ApiError) -> None:
            entry.busy = ""
            entry.body["state"] = "STOPPED"

        return self._operation(request, path, "create", CREATE, made, failed)

    def _delete(self, request: Request) -> Body:
        again = self._again(request)
        if again:
            return again
        path = self._path(request)
        entry = self._entry(path)
        if entry.busy:
            raise ApiError(400, f"Resource '{path}' has an operation in progress.", status="FAILED_PRECONDITION")
        before = entry.body["state"]
        entry.busy, entry.body["state"] = "deleting", "DELETING"

        def gone() -> Body:
            self.world.remove(path)
            self.world.resources[entry.extra["network"]].extra["producer_left"] = self.world.now()
            return EMPTY

        def kept(error: ApiError) -> None:
            entry.busy, entry.body["state"] = "", before

        return self._operation(request, path, "delete", DELETE, gone, kept)

    def _check(self, name: str, zone: str, path: str, body: Body) -> str:
        """The path of the network; refuses what Lustre refuses."""
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise ApiError(400, f"Invalid instance_id '{name}'.")
        if not ZONE.fullmatch(zone):
            raise ApiError(400, f"Location '{zone}' is not a zone.")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,7}", body.get("filesystem", "")):
            raise ApiError(400, "filesystem must be one to eight letters and digits, the first a letter.")
        step = STEPS.get(int(body.get("perUnitStorageThroughput", 0)))
        if step is None:
            raise ApiError(400, f"per_unit_storage_throughput must be one of {sorted(STEPS)}.")
        capacity = int(body.get("capacityGib", 0))
        if capacity < step or capacity % step or capacity > MOST_GIB:
            raise ApiError(400, f"capacity_gib must be a multiple of {step} up to {MOST_GIB}.")
        if not re.fullmatch(r"projects/[^/]+/global/networks/[^/]+", body.get("network", "")):
            raise ApiError(400, "network must be projects/{project_id}/global/networks/{network_name}.")
        network = resolve(self.world, path.split("/")[1], body["network"])
        entry = self.world.get(network)
        if entry is None:
            raise ApiError(404, f"Network '{network}' was not found")
        if not entry.body.get("peerings"):
            raise ApiError(
                400,
                f"Network '{network}' has no private services access connection to servicenetworking.googleapis.com.",
                status="FAILED_PRECONDITION",
            )
        return network
