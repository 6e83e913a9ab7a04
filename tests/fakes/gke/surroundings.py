"""What GKE makes around a cluster and does not always take away: firewalls, NEGs, ranges, DRANET's networks."""

from __future__ import annotations

from tests.fakes.compute.collections import COLLECTIONS
from tests.fakes.compute.links import link, region_of
from tests.fakes.compute.service import ComputeFake
from tests.fakes.world import Body, Entry, World, leaf

#: Subnetworks of DRANET's RoCE network: RDMA NICs of a node.
RDMA_NICS = {"a4x-highgpu-4g": 4}


class Surroundings:
    """Makes and removes them.

    Attributes:
        leaks: Whether a deleted cluster leaves firewalls and NEGs behind, as it does now and then.
    """

    def __init__(self, world: World, compute: ComputeFake) -> None:
        self.world = world
        self.compute = compute
        self.leaks = True

    def make(self, cluster: str, entry: Entry) -> None:
        """Firewalls, a NEG of the Ray head's service, the secondary ranges of the subnetwork."""
        project, name, short = cluster.split("/")[1], leaf(cluster), entry.body["id"][:8]
        network, subnet = entry.extra["network"], entry.extra["subnet"]
        tidy = f"gke-{name[:20].rstrip('-')}-{short}"
        for rule in (f"{tidy}-all", f"{tidy}-vms", f"{tidy}-exkubelet", f"{tidy}-inkubelet", f"k8s-{short}{short}-node-http-hc"):
            path = f"projects/{project}/global/firewalls/{rule}"
            body = {
                "name": rule,
                "network": link(network),
                "sourceRanges": ["10.0.0.0/8"],
                "targetTags": [f"{tidy}-node"],
                "allowed": [{"IPProtocol": "tcp"}],
            }
            self.compute.put(COLLECTIONS["firewalls"], path, body, {network}, cluster=cluster)
        zone = entry.body["locations"][0]
        neg = f"k8s1-{short}-ray-head-svc-8265-{short}"
        path = f"projects/{project}/zones/{zone}/networkEndpointGroups/{neg}"
        body = {"name": neg, "network": link(network), "subnetwork": link(subnet), "networkEndpointType": "GCE_VM_IP_PORT"}
        refs = {network} | ({subnet} if self.world.get(subnet) else set())
        self.compute.put(COLLECTIONS["networkEndpointGroups"], path, body, refs, cluster=cluster)
        found = self.world.get(subnet)
        if found:
            found.body.setdefault("secondaryIpRanges", []).append(
                {"rangeName": entry.body["ipAllocationPolicy"]["clusterSecondaryRangeName"]}
            )

    def unmake(self, cluster: str, entry: Entry) -> None:
        """Remove them, but for what leaks."""
        for path, item in list(self.world.resources.items()):
            if item.extra.get("cluster") == cluster and not (
                self.leaks and leaf(path).endswith(("-vms", "-node-http-hc", entry.body["id"][:8]))
            ):
                self.world.remove(path)
        found = self.world.get(entry.extra["subnet"])
        if found:
            name = entry.body["ipAllocationPolicy"]["clusterSecondaryRangeName"]
            found.body["secondaryIpRanges"] = [item for item in found.body["secondaryIpRanges"] if item["rangeName"] != name]

    def accelerator_networks(self, cluster: str, entry: Entry, zone: str, machine: str) -> tuple[list[Body], set[str]]:
        """DRANET's own networks for a zone, made on first use and never removed by GKE: interfaces and paths that a node refers to."""
        project, prefix = cluster.split("/")[1], f"gke-anp-{entry.body['id'][:8]}-{zone.rpartition('-')[2]}"
        refs: set[str] = set()
        interfaces: list[Body] = []
        for kind, count in (("gvnic", 1), ("mrdma", RDMA_NICS.get(machine, 8))):
            network = f"projects/{project}/global/networks/{prefix}-{kind}"
            profile = {"networkProfile": link(f"projects/{project}/global/networkProfiles/{zone}-vpc-roce")} if kind == "mrdma" else {}
            refs.add(network)
            if self.world.get(network) is None:
                self.compute.put(COLLECTIONS["networks"], network, {"name": leaf(network), "mtu": 8896, **profile}, set())
            if kind == "gvnic" and self.world.get(f"projects/{project}/global/firewalls/{prefix}-allow") is None:
                body = {"name": f"{prefix}-allow", "network": link(network), "allowed": [{"IPProtocol": "tcp"}]}
                self.compute.put(COLLECTIONS["firewalls"], f"projects/{project}/global/firewalls/{prefix}-allow", body, {network})
            for index in range(count):
                subnet = f"projects/{project}/regions/{region_of(zone)}/subnetworks/{prefix}-{kind}-{index}"
                refs.add(subnet)
                interfaces.append({"network": link(network), "subnetwork": link(subnet)})
                if self.world.get(subnet) is None:
                    body = {"name": leaf(subnet), "network": link(network), "ipCidrRange": f"172.16.{index}.0/24"}
                    self.compute.put(COLLECTIONS["subnetworks"], subnet, body, {network})
        return interfaces, refs
