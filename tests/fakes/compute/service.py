"""The fake of the Compute API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.fakes.capacity import Capacity
from tests.fakes.compute.collections import COLLECTIONS, Collection, filled
from tests.fakes.compute.links import REGION, ZONE, link, resolve
from tests.fakes.compute.listing import page
from tests.fakes.compute.operations import Operations
from tests.fakes.compute.rules import PROFILES, Rules
from tests.fakes.errors import ApiError, not_found, not_ready
from tests.fakes.faults import Faults
from tests.fakes.schemas import discovery
from tests.fakes.service import Request, Service, Shared
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, Entry, World, leaf


class ComputeFake(Service):
    """networks, subnetworks, firewalls, addresses, resource policies, and what GKE puts there.

    Attributes:
        page_size: Longest page of a list; small values prove that a caller reads all the pages.
    """

    name = "compute"
    with_status = False

    def __init__(self, world: World, tokens: Tokens, shared: Shared, capacity: Capacity, operation_faults: Faults) -> None:
        super().__init__(world, tokens, shared, discovery("compute.v1"))
        self.capacity = capacity
        self.rules = Rules(world)
        self.operations = Operations(world, operation_faults)
        self.page_size: int | None = None
        for collection in COLLECTIONS.values():
            self._play(collection)
        for scope in ("global", "region", "zone"):
            self.handlers |= {
                f"compute.{scope}Operations.get": lambda request: self.operations.get(self._path(request)),
                f"compute.{scope}Operations.wait": lambda request: self.operations.wait(self._path(request).removesuffix("/wait")),
                f"compute.{scope}Operations.list": self._list_operations,
            }
        self.handlers |= {
            "compute.networks.removePeering": self._remove_peering,
            "compute.networkProfiles.get": lambda request: self.rules.profile(self._path(request)),
            "compute.networkProfiles.list": self._list_profiles,
            "compute.reservationBlocks.get": lambda request: self._view(self._path(request), self._entry(self._path(request))),
            "compute.reservationBlocks.list": lambda request: self._list("reservationBlock", request),
            "compute.instanceGroupManagers.listErrors": self._list_errors,
            "compute.instanceGroupManagers.listManagedInstances": self._list_managed,
            "compute.instanceGroups.listInstances": self._list_group,
            "compute.zones.get": self._get_zone,
            "compute.regions.get": self._get_region,
            "compute.projects.get": self._get_project,
        }

    def plant(self, collection: str, place: str, body: Body, project: str, refs: set[str] | None = None) -> str:
        """Put a resource there as if it had always been, referring to `refs` and to the network and subnetwork that it names.

        Args:
            place: `global`, a region or a zone.

        Returns:
            Its path.
        """
        item = COLLECTIONS[collection]
        scope = "global" if item.scope == "global" else f"{item.scope}/{place}"
        path = f"projects/{project}/{scope}/{item.segment}/{body['name']}"
        body, refs = dict(body), set(refs or ())
        with self.world.lock:
            for field, where in (("network", "global/networks"), ("subnetwork", f"regions/{place}/subnetworks")):
                if field in body:
                    target = resolve(self.world, project, body[field], where)
                    body[field] = link(target)
                    refs.add(target)
            self.put(item, path, body, refs).planted = True
        return path

    def put(self, collection: Collection, path: str, body: Body, refs: set[str], busy: str = "", **extra: Any) -> Entry:
        """Make a resource without an operation: what GKE and Service Networking do."""
        full = filled(collection, path, body, self.world.serial(), self.world.stamp())
        return self.world.add(path, full, busy=busy, refs=refs, **extra)

    def _play(self, collection: Collection) -> None:
        prefix = f"compute.{collection.name}"
        self.handlers[f"{prefix}.get"] = lambda request: self._view(self._path(request), self._entry(self._path(request)))
        self.handlers[f"{prefix}.list"] = lambda request: self._list(collection.kind, request)
        self.handlers[f"{prefix}.aggregatedList"] = lambda request: self._aggregated(collection, request)
        if collection.insertable:
            self.handlers[f"{prefix}.insert"] = lambda request: self._insert(collection, request)
        if collection.deletable:
            self.handlers[f"{prefix}.delete"] = lambda request: self._delete(collection, request)

    def _path(self, request: Request) -> str:
        """The request's path with the project's id; checks region and zone."""
        parts = request.path.split("/")
        parts[1] = self.world.project(parts[1]).id
        for kind, form in (("zone", ZONE), ("region", REGION)):
            if kind in request.at and not form.fullmatch(request.at[kind]):
                raise ApiError(400, f"Invalid value for field '{kind}': '{request.at[kind]}'. Unknown {kind}.", reason="invalid")
        return "/".join(parts)

    def _entry(self, path: str) -> Entry:
        entry = self.world.get(path)
        if entry is None:
            raise not_found(path)
        return entry

    def _view(self, path: str, entry: Entry) -> Body:
        body = dict(entry.body)
        if path.split("/")[-2] == "networks":
            subnets = [link(other) for other, item in self.world.of_kind("regions/subnetworks") if item.body["network"] == link(path)]
            body |= {"subnetworks": subnets} if subnets else {}
        return body

    def _insert(self, collection: Collection, request: Request) -> Body:
        body = request.body
        if not body.get("name"):
            raise ApiError(400, "Invalid value for field 'resource.name': ''. The resource name must be provided", reason="required")
        path = f"{self._path(request)}/{body['name']}"
        again = self.operations.repeated(path, request.query.get("requestId", ""))
        if again:
            return again
        if self.world.get(path):
            raise ApiError(409, f"The resource '{path}' already exists")
        refs = self.rules.check_insert(collection, path, body)
        self.capacity.check_count(collection, path)
        entry = self.put(collection, path, body, refs, busy="creating")

        def made() -> None:
            entry.busy = ""

        def failed() -> None:
            self.world.remove(path)

        request_id = request.query.get("requestId", "")
        return self.operations.start(request.method, path, "insert", collection.made, made, failed, request.caller, request_id)

    def _delete(self, collection: Collection, request: Request) -> Body:
        path = self._path(request)
        again = self.operations.repeated(path, request.query.get("requestId", ""))
        if again:
            return again
        entry = self._entry(path)
        if entry.busy:
            raise not_ready(path)
        self.rules.check_delete(collection, path)
        entry.busy = "deleting"

        def kept() -> None:
            entry.busy = ""

        def gone() -> ApiError | None:
            kept()
            try:
                self.rules.check_delete(collection, path)
            except ApiError as error:
                return error
            self.world.remove(path)
            return None

        request_id = request.query.get("requestId", "")
        return self.operations.start(request.method, path, "delete", collection.gone, gone, kept, request.caller, request_id)

    def _list(self, kind: str, request: Request) -> Body:
        path = self._path(request)
        items = [self._view(child, entry) for child, entry in self.world.children(path)]
        shown, token = page(items, request.query, self.page_size)
        out: Body = {"kind": f"compute#{kind}List", "id": path, "selfLink": link(path)}
        return out | ({"items": shown} if shown else {}) | ({"nextPageToken": token} if token else {})

    def _aggregated(self, collection: Collection, request: Request) -> Body:
        project = self.world.project(request.at["project"]).id
        items = [
            (re.sub(rf"^projects/{project}/|/{collection.segment}/.*", "", path), self._view(path, entry))
            for scope in ("global", "regions", "zones")
            for path, entry in self.world.of_kind(f"{scope}/{collection.segment}", project)
        ]
        shown, token = page([{**view, "_scope": scope} for scope, view in items], request.query, self.page_size)
        scoped: dict[str, Body] = {}
        for view in shown:
            scoped.setdefault(view.pop("_scope"), {collection.segment: []})[collection.segment].append(view)
        out: Body = {"kind": f"compute#{collection.kind}AggregatedList", "items": scoped}
        return out | ({"nextPageToken": token} if token else {})

    def _list_operations(self, request: Request) -> Body:
        shown, token = page(self.operations.within(self._path(request)), request.query, self.page_size)
        return {"kind": "compute#operationList", "items": shown} | ({"nextPageToken": token} if token else {})

    def _list_profiles(self, request: Request) -> Body:
        base = self._path(request)
        items = [self.rules.profile(f"{base}/{zone}-{suffix}") for zone in sorted(self.rules.roce_zones) for suffix in PROFILES]
        shown, token = page(items, request.query, self.page_size)
        return {"kind": "compute#networkProfileList", "items": shown} | ({"nextPageToken": token} if token else {})

    def _remove_peering(self, request: Request) -> Body:
        path = self._path(request).removesuffix("/removePeering")
        entry = self._entry(path)
        wanted = request.body.get("name", "")
        if wanted not in [peering["name"] for peering in entry.body.get("peerings", ())]:
            raise ApiError(400, f"There is no peering '{wanted}' in network '{path}'.", reason="invalid")

        def gone() -> None:
            entry.body["peerings"] = [peering for peering in entry.body["peerings"] if peering["name"] != wanted]
            self.world.remove(f"{path}/connections/{wanted}")

        return self.operations.start(request.method, path, "removePeering", 20, gone, lambda: None, request.caller)

    def _list_errors(self, request: Request) -> Body:
        entry = self._entry(self._path(request).removesuffix("/listErrors"))
        shown, token = page(list(reversed(entry.extra.get("errors", []))), request.query, self.page_size)
        return ({"items": shown} if shown else {}) | ({"nextPageToken": token} if token else {})

    def _list_managed(self, request: Request) -> Body:
        path = self._path(request).removesuffix("/listManagedInstances")
        self._entry(path)
        return {
            "managedInstances": [
                {"instance": link(other), "name": leaf(other), "instanceStatus": entry.body["status"], "currentAction": "NONE"}
                for other, entry in self._members(path)
            ]
        }

    def _list_group(self, request: Request) -> Body:
        path = self._path(request).removesuffix("/listInstances")
        self._entry(path)
        members = self._members(path.replace("/instanceGroups/", "/instanceGroupManagers/"))
        return {
            "kind": "compute#instanceGroupsListInstances",
            "items": [{"instance": link(p), "status": e.body["status"]} for p, e in members],
        }

    def _members(self, manager: str) -> Iterator[tuple[str, Entry]]:
        return ((path, entry) for path, entry in self.world.of_kind("zones/instances") if entry.extra.get("manager") == manager)

    def _get_zone(self, request: Request) -> Body:
        path = self._path(request)
        return {"kind": "compute#zone", "name": request.name, "status": "UP", "selfLink": link(path)}

    def _get_region(self, request: Request) -> Body:
        path = self._path(request)
        quotas = self.capacity.quotas(self.world.project(request.at["project"]), request.name)
        return {"kind": "compute#region", "name": request.name, "status": "UP", "selfLink": link(path), "quotas": quotas}

    def _get_project(self, request: Request) -> Body:
        project = self.world.project(request.at["project"])
        return {"kind": "compute#project", "name": project.id, "id": project.number, "quotas": self.capacity.quotas(project, "")}
