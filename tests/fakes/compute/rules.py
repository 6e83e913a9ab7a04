"""What Compute refuses: networks without their profile, firewalls on RoCE networks, overlapping ranges, things in use."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from tests.fakes.compute.collections import Collection
from tests.fakes.compute.links import link, region_of, resolve
from tests.fakes.errors import ApiError, in_use, invalid, not_found, not_ready
from tests.fakes.world import Body, World, leaf

#: Zones with a RoCE network profile where a test does not say otherwise.
ROCE_ZONES = frozenset({"us-central1-b", "us-east1-b", "us-south1-b", "us-west3-b", "europe-west1-b", "asia-southeast1-b"})
PROFILES = ("vpc-roce", "vpc-roce-metal")


class Rules:
    """Checks of inserts and deletes; `roce_zones` says where RoCE networks can be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.roce_zones = set(ROCE_ZONES)

    def check_insert(self, collection: Collection, path: str, body: Body) -> set[str]:
        """Make references in `body` full URLs; returns the paths that it refers to.

        Raises:
            ApiError: 400 or 404, as Compute answers.
        """
        project = path.split("/")[1]
        refs = {}
        for field, default in (("network", "global/networks"), ("subnetwork", ""), ("networkProfile", "global/networkProfiles")):
            if field in body:
                refs[field] = resolve(self.world, project, body[field], default)
                body[field] = link(refs[field])
        if collection.segment == "firewalls" and "network" not in refs:
            refs["network"] = f"projects/{project}/global/networks/default"
            body["network"] = link(refs["network"])
        for field, target in refs.items():
            if field == "networkProfile":
                self.profile(target)
            else:
                self._usable(target)
        check = getattr(self, f"_insert_{collection.segment}", None)
        if check:
            check(path, body, refs.get("network", ""))
        return {target for field, target in refs.items() if field != "networkProfile"}

    def users(self, path: str) -> Iterator[str]:
        """Paths of what keeps a resource from being deleted."""
        for other, entry in self.world.resources.items():
            if path in entry.extra.get("refs", ()):
                yield other
        own = self.world.get(path)
        if own:
            yield from (f"{path}/peerings/{peering['name']}" for peering in own.body.get("peerings", ()))
            yield from (resolve(self.world, path.split("/")[1], user) for user in own.body.get("users", ()))

    def check_delete(self, collection: Collection, path: str) -> None:
        """Raises:
        ApiError: 400 resourceInUseByAnotherResource.
        """
        for user in self.users(path):
            raise in_use(collection.kind, path, user)

    def profile(self, path: str) -> Body:
        """A network profile, `projects/P/global/networkProfiles/ZONE-vpc-roce`.

        Raises:
            ApiError: 404 where the zone has no RoCE.
        """
        name = leaf(path)
        for suffix in PROFILES:
            zone = name.removesuffix(f"-{suffix}")
            if zone != name and zone in self.roce_zones:
                return {
                    "kind": "compute#networkProfile",
                    "name": name,
                    "selfLink": link(path),
                    "location": {"name": zone, "scope": "ZONE"},
                    "profileType": {"networkType": "VPC", "vpcSubtype": "ROCE"},
                    "features": {"interfaceTypes": ["MRDMA"], "allowVpcFirewallRules": "VPC_FIREWALL_RULES_BLOCKED"},
                }
        raise not_found(path)

    def roce_zone(self, network: str) -> str:
        """The zone of a RoCE network, '' for another."""
        entry = self.world.get(network)
        profile = leaf(entry.body.get("networkProfile", "")) if entry else ""
        return profile.partition("-vpc-roce")[0]

    def _usable(self, path: str) -> None:
        entry = self.world.get(path)
        if entry is None:
            raise not_found(path)
        if entry.busy:
            raise not_ready(path)

    def _insert_networks(self, path: str, body: Body, network: str) -> None:
        if "networkProfile" in body and body.get("autoCreateSubnetworks"):
            raise invalid("resource.autoCreateSubnetworks", "true", "Networks with a network profile must be in custom mode.")
        mtu = body.get("mtu", 1460)
        if not 1300 <= mtu <= 8896:
            raise invalid("resource.mtu", mtu, "Must be between 1300 and 8896.")

    def _insert_subnetworks(self, path: str, body: Body, network: str) -> None:
        for field in ("network", "ipCidrRange"):
            if field not in body:
                raise ApiError(400, f"Required field 'resource.{field}' not specified", reason="required")
        region = path.split("/")[3]
        try:
            wanted = ipaddress.ip_network(body["ipCidrRange"])
        except ValueError as error:
            raise invalid("resource.ipCidrRange", body["ipCidrRange"], f"Invalid IPCidrRange: {error}.") from error
        zone = self.roce_zone(network)
        if zone and region_of(zone) != region:
            raise invalid("resource.region", region, f"Subnetworks of network '{network}' must be in region '{region_of(zone)}'.")
        for other, entry in self.world.of_kind("regions/subnetworks"):
            if entry.body["network"] == body["network"] and wanted.overlaps(ipaddress.ip_network(entry.body["ipCidrRange"])):
                what = f"{body['ipCidrRange']} conflicts with existing subnetwork '{leaf(other)}' in region '{other.split('/')[3]}'."
                raise ApiError(400, f"Invalid IPCidrRange: {what}", reason="badRequest")

    def _insert_firewalls(self, path: str, body: Body, network: str) -> None:
        if self.roce_zone(network):
            why = "Firewall rules are not supported on networks with a RoCE network profile."
            raise invalid("resource.network", body["network"], why)
        if ("allowed" in body) == ("denied" in body):
            raise ApiError(400, "Exactly one of 'resource.allowed' and 'resource.denied' must be specified.", reason="invalid")
        for rule in body.get("allowed") or body.get("denied") or ():
            if "IPProtocol" not in rule:
                raise ApiError(400, "Required field 'resource.allowed[0].IPProtocol' not specified", reason="required")

    def _insert_addresses(self, path: str, body: Body, network: str) -> None:
        if body.get("purpose") == "VPC_PEERING":
            for field in ("network", "prefixLength"):
                if field not in body:
                    raise ApiError(400, f"Required field 'resource.{field}' not specified", reason="required")
            if body.get("addressType") != "INTERNAL":
                raise invalid("resource.addressType", body.get("addressType", ""), "Must be INTERNAL for purpose VPC_PEERING.")

    def _insert_resourcePolicies(self, path: str, body: Body, network: str) -> None:
        kinds = [
            kind
            for kind in ("workloadPolicy", "groupPlacementPolicy", "snapshotSchedulePolicy", "diskConsistencyGroupPolicy")
            if kind in body
        ]
        if len(kinds) != 1:
            raise ApiError(400, "Exactly one policy must be specified in 'resource'.", reason="invalid")
        policy = body.get("workloadPolicy", {})
        if policy.get("acceleratorTopology") and policy.get("type") != "HIGH_THROUGHPUT":
            raise invalid("resource.workloadPolicy.acceleratorTopology", policy["acceleratorTopology"], "Needs type HIGH_THROUGHPUT.")
