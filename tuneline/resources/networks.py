"""Networks: the cluster's where it is ours; for RDMA on Standard a gVNIC network and a RoCE network with a subnet for each NIC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tuneline.config.machines import MACHINES
from tuneline.config.spec import RunSpec
from tuneline.gcp import capacity, compute
from tuneline.gcp.clients import Google
from tuneline.gcp.ownership import Mark
from tuneline.resources.inventory import Inventory, Names

#: Jumbo frames, which RoCE wants and the cluster's gVNIC network shares.
MTU = 8896
NODES_RANGE = "10.10.0.0/20"
GVNIC_RANGE = "192.168.0.0/24"
#: Source of the gVNIC network's firewall rule: its own range and those of the RoCE subnets.
INTERNAL_RANGE = "192.168.0.0/16"


@dataclass(frozen=True)
class Networks:
    """compute_v1 bodies in the order of their creation."""

    networks: list[Any] = field(default_factory=list)
    subnetworks: list[Any] = field(default_factory=list)
    firewalls: list[Any] = field(default_factory=list)


def uses_rdma_networks(spec: RunSpec) -> bool:
    """Whether NICs come by networks of ours; on Autopilot and A4X GKE's DRANET makes its own."""
    return spec.infra_cluster_kind == "standard" and spec.gpu_machine != ""


def build_networks(spec: RunSpec, names: Names, mark: Mark) -> Networks:
    """Every network, subnet and firewall rule that the run needs."""
    made = Networks()
    if names.own_network:
        made.networks.append(_network(names.network, mark))
        made.subnetworks.append(_subnetwork(spec, names.network, names.subnetwork, NODES_RANGE, mark, private_google_access=True))
    if uses_rdma_networks(spec):
        # The profile is the zone's: a region has none.
        profile = f"projects/{spec.infra_project}/global/networkProfiles/{spec.infra_zone}-vpc-roce"
        made.networks.extend([_network(names.gvnic, mark), _network(names.roce, mark, network_profile=profile)])
        made.subnetworks.append(_subnetwork(spec, names.gvnic, names.gvnic_subnetwork, GVNIC_RANGE, mark))
        for number in range(MACHINES[spec.gpu_machine].rdma_nics):
            name = names.roce_subnetworks[number]
            made.subnetworks.append(_subnetwork(spec, names.roce, name, f"192.168.{number + 1}.0/24", mark))
        # A RoCE network refuses VPC firewall rules; only the gVNIC network gets one.
        made.firewalls.append(
            build_firewall(
                spec,
                names.gvnic,
                names.gvnic_firewall,
                [INTERNAL_RANGE],
                [("tcp", ("0-65535",)), ("udp", ("0-65535",)), ("icmp", ())],
                mark,
            )
        )
    return made


def network_path(spec: RunSpec, name: str) -> str:
    """`projects/P/global/networks/N`."""
    return f"projects/{spec.infra_project}/global/networks/{name}"


def _network(name: str, mark: Mark, **more: Any) -> Any:
    from google.cloud import compute_v1

    return compute_v1.Network(
        name=name,
        description=mark.description,
        auto_create_subnetworks=False,
        mtu=MTU,
        routing_config=compute_v1.NetworkRoutingConfig(routing_mode="REGIONAL"),
        **more,
    )


def _subnetwork(spec: RunSpec, network: str, name: str, ip_range: str, mark: Mark, *, private_google_access: bool = False) -> Any:
    from google.cloud import compute_v1

    more = {"private_ip_google_access": True} if private_google_access else {}
    return compute_v1.Subnetwork(
        name=name,
        description=mark.description,
        network=network_path(spec, network),
        ip_cidr_range=ip_range,
        region=f"projects/{spec.infra_project}/regions/{spec.infra_region}",
        **more,
    )


def build_firewall(
    spec: RunSpec, network: str, name: str, sources: list[str], allowed: list[tuple[str, tuple[str, ...]]], mark: Mark
) -> Any:
    """compute_v1.Firewall that lets `allowed` (protocol, ports) in from `sources`."""
    from google.cloud import compute_v1

    return compute_v1.Firewall(
        name=name,
        description=mark.description,
        network=network_path(spec, network),
        direction="INGRESS",
        source_ranges=sources,
        allowed=[compute_v1.Allowed(I_p_protocol=protocol, ports=list(ports)) for protocol, ports in allowed],
    )


def ensure_networks(google: Google, spec: RunSpec, names: Names, mark: Mark, inventory: Inventory) -> str:
    """Every network of the run is there. Returns the subnet of the cluster's nodes.

    Raises:
        NotFound: The zone has no RoCE, or an adopted network no subnet in the region.
        Conflict: A name is taken by something else.
    """
    if uses_rdma_networks(spec):
        capacity.check_roce_profile(google, spec.infra_zone)
    made = build_networks(spec, names, mark)
    for body in made.networks:
        found = compute.ensure_resource(google, compute.NETWORK, body, mark)
        inventory.note("network", body.name, created=found.created)
    for found in compute.ensure_subnetworks(google, made.subnetworks, mark, region=spec.infra_region):
        inventory.note("subnetwork", found.name, place=spec.infra_region, created=found.created)
    for body in made.firewalls:
        found = compute.ensure_resource(google, compute.FIREWALL, body, mark)
        inventory.note("firewall", body.name, created=found.created)
    subnetwork = subnetwork_of(google, spec, names)
    if not names.own_network:
        inventory.note("network", names.network, created=False)
    return subnetwork


def subnetwork_of(google: Google, spec: RunSpec, names: Names) -> str:
    """The subnet of the cluster's nodes, '' in an auto-mode network.

    Raises:
        NotFound: An adopted network has none in the region.
    """
    return names.subnetwork if names.own_network else compute.subnet_of(google, names.network, spec.infra_region)
