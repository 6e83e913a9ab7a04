"""Compute's collections as this project uses them, and what each fills in when a resource is made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from tests.fakes.compute.links import link
from tests.fakes.world import Body


@dataclass(frozen=True)
class Collection:
    """One collection.

    Attributes:
        name: As in the method ids: `globalAddresses`.
        segment: As in paths: `addresses`.
        kind: As in `compute#address` and in messages.
        scope: global | regions | zones.
        made: Virtual seconds that an insert takes.
        gone: Virtual seconds that a delete takes.
        metric: Quota that counts its resources, '' for none.
        insertable: Whether the API may make one here (GKE and Google make the others).
        deletable: Whether the API may delete one here.
    """

    name: str
    segment: str
    kind: str
    scope: str
    made: float
    gone: float
    metric: str = ""
    insertable: bool = True
    deletable: bool = True


COLLECTIONS = {
    item.name: item
    for item in (
        Collection("networks", "networks", "network", "global", 30, 40, "NETWORKS"),
        Collection("subnetworks", "subnetworks", "subnetwork", "regions", 20, 20, "SUBNETWORKS"),
        Collection("firewalls", "firewalls", "firewall", "global", 15, 10, "FIREWALLS"),
        Collection("globalAddresses", "addresses", "address", "global", 8, 8, "GLOBAL_INTERNAL_ADDRESSES"),
        Collection("addresses", "addresses", "address", "regions", 8, 8, "STATIC_ADDRESSES"),
        Collection("resourcePolicies", "resourcePolicies", "resourcePolicy", "regions", 5, 5, "RESOURCE_POLICIES"),
        Collection("forwardingRules", "forwardingRules", "forwardingRule", "regions", 30, 30, "FORWARDING_RULES"),
        Collection("globalForwardingRules", "forwardingRules", "forwardingRule", "global", 30, 30, "FORWARDING_RULES"),
        Collection("networkEndpointGroups", "networkEndpointGroups", "networkEndpointGroup", "zones", 10, 10),
        Collection("disks", "disks", "disk", "zones", 10, 10),
        Collection("instances", "instances", "instance", "zones", 0, 0, insertable=False, deletable=False),
        Collection("instanceGroups", "instanceGroups", "instanceGroup", "zones", 0, 0, insertable=False, deletable=False),
        Collection(
            "instanceGroupManagers", "instanceGroupManagers", "instanceGroupManager", "zones", 0, 0, insertable=False, deletable=False
        ),
        Collection("reservations", "reservations", "reservation", "zones", 0, 0, insertable=False, deletable=False),
    )
}


def filled(collection: Collection, path: str, body: Body, number: int, stamp: str) -> Body:
    """The resource that an insert of `body` makes; `number` is unique."""
    project = path.split("/")[1]
    out: dict[str, Any] = {
        "kind": f"compute#{collection.kind}",
        "id": str(10**18 + number),
        "creationTimestamp": stamp,
        **_DEFAULTS.get(collection.segment, {}),
        **body,
        "selfLink": link(path),
    }
    if collection.scope != "global":
        scope, place = path.split("/")[2:4]
        out[scope.removesuffix("s")] = link(f"projects/{project}/{scope}/{place}")
    if collection.segment == "networks":
        out["selfLinkWithId"] = link(f"projects/{project}/global/networks/{out['id']}")
    if collection.segment == "subnetworks":
        out["gatewayAddress"] = str(ipaddress.ip_network(body["ipCidrRange"])[1])
    if collection.segment == "addresses" and "address" not in body:
        out["address"] = f"10.{100 + number % 100}.0.0"
    return out


_DEFAULTS: dict[str, Body] = {
    "networks": {
        "autoCreateSubnetworks": False,
        "mtu": 1460,
        "routingConfig": {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"},
        "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
    },
    "subnetworks": {
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "privateIpGoogleAccess": False,
        "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
        "fingerprint": "AAAAAAAAAAA=",
    },
    "firewalls": {"priority": 1000, "direction": "INGRESS", "disabled": False, "description": "", "logConfig": {"enable": False}},
    "addresses": {"addressType": "EXTERNAL", "status": "RESERVED", "description": "", "labelFingerprint": "AAAAAAAAAAA="},
    "resourcePolicies": {"status": "READY"},
    "networkEndpointGroups": {"size": 0},
    "disks": {"status": "READY", "labelFingerprint": "AAAAAAAAAAA="},
}
