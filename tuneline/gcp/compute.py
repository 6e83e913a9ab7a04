"""Compute Engine: networks, subnets, firewall rules, addresses, workload policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call, delete, ensure, find
from tuneline.gcp.clients import Google
from tuneline.gcp.compare import check_found
from tuneline.gcp.errors import Conflict, NotFound
from tuneline.gcp.operations import find_compute, send_compute, wait_compute
from tuneline.gcp.ownership import Mark

#: gcp.md 2.3.
NETWORK_SECONDS = 300.0


@dataclass(frozen=True)
class Ensured:
    """A thing that is there.

    Attributes:
        created: True if this run created it: only then may this run delete it.
        resource: As the API reads it back.
    """

    name: str
    created: bool
    resource: Any


@dataclass(frozen=True)
class Collection:
    """A kind of compute resource.

    Attributes:
        client: compute_v1 client without `Client`.
        item, body: Parameter names of its id and of its body.
        scope: '' (global) | region | zone.
        must: Fields that an adopted one must have as asked.
    """

    client: str
    item: str
    body: str
    path: str
    scope: str = ""
    must: tuple[str, ...] = ()


NETWORK = Collection("Networks", "network", "network_resource", "networks", must=("auto_create_subnetworks", "network_profile", "mtu"))
SUBNETWORK = Collection(
    "Subnetworks", "subnetwork", "subnetwork_resource", "subnetworks", "region", must=("network", "ip_cidr_range", "region")
)
FIREWALL = Collection("Firewalls", "firewall", "firewall_resource", "firewalls", must=("network", "direction", "allowed", "source_ranges"))
ADDRESS = Collection(
    "GlobalAddresses", "address", "address_resource", "addresses", must=("purpose", "address_type", "prefix_length", "network")
)
POLICY = Collection(
    "ResourcePolicies", "resource_policy", "resource_policy_resource", "resourcePolicies", "region", must=("workload_policy",)
)
NEG = Collection("NetworkEndpointGroups", "network_endpoint_group", "", "networkEndpointGroups", "zone")
DISK = Collection("Disks", "disk", "", "disks", "zone")
FORWARDING_RULE = Collection("ForwardingRules", "forwarding_rule", "", "forwardingRules", "region")


def address_of(google: Google, kind: Collection, name: str, place: str = "") -> str:
    """`projects/P/[global|regions/R|zones/Z]/networks/N`."""
    where = f"{kind.scope}s/{place}" if kind.scope else "global"
    return f"projects/{google.project}/{where}/{kind.path}/{name}"


def _where(google: Google, kind: Collection, place: str) -> dict[str, str]:
    return {"project": google.project, **({kind.scope: place} if kind.scope else {})}


def get(google: Google, kind: Collection, name: str, *, place: str = "", deadline: Deadline | None = None) -> Any | None:
    """The resource, None where there is none.

    Args:
        place: Its region or zone, '' for a global one.
    """
    client, where = google.compute(kind.client), _where(google, kind, place)
    return find(google, f"read {kind.path}/{name}", lambda: client.get(**where, **{kind.item: name}, **PLAIN), _within(google, deadline))


def list_all(google: Google, kind: Collection, *, place: str = "", deadline: Deadline | None = None) -> list[Any]:
    """Every resource of a kind in a place."""
    client, where = google.compute(kind.client), _where(google, kind, place)
    return call(google, f"list {kind.path}", lambda: list(client.list(**where, **PLAIN)), _within(google, deadline))


def list_everywhere(google: Google, kind: Collection, *, deadline: Deadline | None = None) -> list[tuple[str, Any]]:
    """(region or zone, resource) of every place."""
    client = google.compute(kind.client)

    def send() -> list[tuple[str, Any]]:
        pages = client.aggregated_list(project=google.project, **PLAIN)
        return [(scope.rsplit("/", 1)[-1], item) for scope, found in pages for item in getattr(found, _plural(kind))]

    return call(google, f"list {kind.path} everywhere", send, _within(google, deadline))


def _plural(kind: Collection) -> str:
    return {"networkEndpointGroups": "network_endpoint_groups", "forwardingRules": "forwarding_rules"}.get(kind.path, kind.path)


def _within(google: Google, deadline: Deadline | None) -> Deadline:
    return deadline or Deadline.after(google.clock, NETWORK_SECONDS)


def _insert(google: Google, kind: Collection, body: Any, place: str, mark: Mark, serial: int, deadline: Deadline) -> Any:
    """Send an insert; returns its operation, in flight."""
    client, where = google.compute(kind.client), _where(google, kind, place)
    return send_compute(
        google,
        f"create {kind.path}/{body.name}",
        lambda identity: client.insert_unary({**where, kind.body: body, "request_id": identity}, **PLAIN),
        mark.run,
        address_of(google, kind, body.name, place),
        serial,
        deadline,
    )


def ensure_resource(
    google: Google, kind: Collection, body: Any, mark: Mark, *, place: str = "", deadline: Deadline | None = None
) -> Ensured:
    """The resource as asked, created or adopted.

    Raises:
        Conflict: It is there but another's or different; names both values.
    """
    until = _within(google, deadline)
    what = f"{kind.path}/{body.name}"

    def create(serial: int) -> None:
        operation = _insert(google, kind, body, place, mark, serial, until)
        wait_compute(google, operation, f"create {what}", until)

    def read() -> Any | None:
        return get(google, kind, body.name, place=place, deadline=until)

    def settle(resource: Any) -> Any | None:
        # A resource is listed while it is still being made, by us before a restart or by another run: whoever began, wait.
        operation = find_compute(google, kind.scope, place, address_of(google, kind, body.name, place), until)
        if operation is None:
            return resource
        wait_compute(google, operation, f"{operation.operation_type} {what}", until)
        return read()

    found = ensure(google, what, get=read, create=create, settle=settle, deadline=until)
    return Ensured(body.name, check_found(what, body, found, mark=mark, must=kind.must), found)


def ensure_subnetworks(google: Google, bodies: Sequence[Any], mark: Mark, *, region: str) -> list[Ensured]:
    """Subnets, created concurrently: all requests are sent, then all are waited for."""
    until = Deadline.after(google.clock, NETWORK_SECONDS)
    for body in bodies:
        if get(google, SUBNETWORK, body.name, place=region, deadline=until) is None:
            # ensure_resource waits for this operation below.
            _insert(google, SUBNETWORK, body, region, mark, 0, until)
    return [ensure_resource(google, SUBNETWORK, body, mark, place=region, deadline=until) for body in bodies]


def delete_resource(google: Google, kind: Collection, name: str, run: str, *, place: str = "", deadline: Deadline | None = None) -> bool:
    """Delete it and look until it is gone; True if there was something to delete. The caller has proved that it is ours."""
    until = _within(google, deadline)
    client, where = google.compute(kind.client), _where(google, kind, place)
    address = address_of(google, kind, name, place)

    def send(serial: int) -> None:
        what = f"delete {kind.path}/{name}"
        operation = send_compute(
            google,
            what,
            lambda identity: client.delete_unary({**where, kind.item: name, "request_id": identity}, **PLAIN),
            run,
            f"{address}/delete",
            serial,
            Deadline.after(google.clock, 0),
        )
        wait_compute(google, operation, what, until)

    return delete(
        google, f"{kind.path}/{name}", get=lambda: get(google, kind, name, place=place, deadline=until), send=send, deadline=until
    )


def remove_peering(google: Google, network: str, peering: str, run: str, *, deadline: Deadline) -> None:
    """Cut our side of a peering: what is left when a producer never lets go of its side."""
    what = f"remove peering {peering} from networks/{network}"
    client = google.compute("Networks")
    body = {"name": peering}
    operation = send_compute(
        google,
        what,
        lambda identity: client.remove_peering_unary(
            {"project": google.project, "network": network, "networks_remove_peering_request_resource": body, "request_id": identity},
            **PLAIN,
        ),
        run,
        f"networks/{network}/removePeering/{peering}",
        0,
        deadline,
    )
    wait_compute(google, operation, what, deadline)


def subnet_of(google: Google, network: str, region: str) -> str:
    """The name of the subnet for nodes in an adopted network: its one subnet in the region; '' for auto mode, where GKE takes the region's.

    Raises:
        NotFound: The network or such a subnet is not there.
        Conflict: There are several, none named like the network.
    """
    found = get(google, NETWORK, network)
    if found is None:
        raise NotFound(
            f"there is no network {network}",
            asked=f"infra_network={network}",
            next_move="choose one that is there, or a name that starts with infra_name, which is then made",
        )
    if found.auto_create_subnetworks:
        return ""
    names = sorted(item.name for item in list_all(google, SUBNETWORK, place=region) if item.network.rsplit("/", 1)[-1] == network)
    if not names:
        raise NotFound(
            f"network {network} has no subnet in {region}", asked=f"infra_region={region}", next_move="make one, or choose another region"
        )
    if len(names) > 1 and network not in names:
        raise Conflict(
            f"network {network} has several subnets in {region} and none is called {network}",
            found=", ".join(names),
            next_move="choose a network with one subnet in this region, or a name that starts with infra_name, which is then made",
        )
    return network if network in names else names[0]
