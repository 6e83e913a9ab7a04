"""What a cluster leaves behind, and that an orderly teardown of each system leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PARENT, PROJECT, REGION, ZONE, Clients, until

DRANET = {"labels": {"cloud.google.com/gke-networking-dra-driver": "true"}}


def names(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]


def drop(clients: Clients, kind: type[Any], word: str, wanted: Callable[[str], bool], **place: str) -> list[str]:
    """Delete what `wanted` picks, again and again while it is in use; returns what was deleted."""
    client = clients.compute(kind)
    chosen = [name for name in names(client.list(project=PROJECT, **place)) if wanted(name)]
    for name in chosen:

        def gone(name: str = name) -> bool:
            try:
                return not clients.done(client.delete(project=PROJECT, **place, **{word: name})).error.errors
            except exceptions.BadRequest:
                return False

        until(clients.fakes, gone, 1800)
    return chosen


def test_a_deleted_cluster_leaves_firewalls_and_an_endpoint_group(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    short = clients.gke.get_cluster(name=CLUSTER).id[:8]
    subnets = clients.compute(compute_v1.SubnetworksClient)
    ranges = subnets.get(project=PROJECT, region=REGION, subnetwork="sub").secondary_ip_ranges
    assert [item.range_name for item in ranges] == [f"gke-c-pods-{short}"]
    clients.done(clients.gke.delete_cluster(name=CLUSTER))
    assert not subnets.get(project=PROJECT, region=REGION, subnetwork="sub").secondary_ip_ranges
    with pytest.raises(exceptions.BadRequest, match="networkEndpointGroups"):
        subnets.delete(project=PROJECT, region=REGION, subnetwork="sub")
    left = drop(clients, compute_v1.FirewallsClient, "firewall", lambda name: name.startswith(("gke-c-", "k8s-")))
    assert left == [f"gke-c-{short}-vms", f"k8s-{short}{short}-node-http-hc"]
    assert drop(clients, compute_v1.NetworkEndpointGroupsClient, "network_endpoint_group", bool, zone=f"{REGION}-a")
    drop(clients, compute_v1.SubnetworksClient, "subnetwork", bool, region=REGION)
    drop(clients, compute_v1.NetworksClient, "network", lambda name: name == "net")
    assert fakes.leftovers() == []


def test_a_cluster_can_leave_nothing(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.container.surroundings.leaks = False
    clients.ready()
    clients.done(clients.gke.delete_cluster(name=CLUSTER))
    assert fakes.leftovers() == [f"projects/{PROJECT}/global/networks/net", f"projects/{PROJECT}/regions/{REGION}/subnetworks/sub"]


def test_dranet_leaves_its_own_networks_named_by_the_clusters_id(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    clients.subnet()
    body = {"name": "c", "network": "net", "subnetwork": "sub", "autopilot": {"enabled": True}}
    clients.done(clients.gke.create_cluster({"parent": PARENT, "cluster": body}))
    short = clients.gke.get_cluster(name=CLUSTER).id[:8]
    pool = fakes.container.provision("c", "a4-highgpu-8g", ZONE, 1)
    until(fakes, lambda: len(fakes.container.nodes("c", pool)) == 1)
    clients.done(clients.gke.delete_cluster(name=CLUSTER))
    networks = clients.compute(compute_v1.NetworksClient)
    anp = [name for name in names(networks.list(project=PROJECT)) if name.startswith(f"gke-anp-{short}")]
    assert len(anp) == 2

    def ours(name: str) -> bool:
        return name.startswith((f"gke-anp-{short}", "gke-c-", "k8s"))

    assert len(drop(clients, compute_v1.FirewallsClient, "firewall", ours)) == 3
    assert len(drop(clients, compute_v1.SubnetworksClient, "subnetwork", ours, region=REGION)) == 9
    drop(clients, compute_v1.NetworksClient, "network", ours)
    drop(clients, compute_v1.NetworkEndpointGroupsClient, "network_endpoint_group", bool, zone=f"{REGION}-a")
    drop(clients, compute_v1.SubnetworksClient, "subnetwork", bool, region=REGION)
    drop(clients, compute_v1.NetworksClient, "network", lambda name: name == "net")
    assert fakes.leftovers() == []


def test_a4x_has_four_nics_and_holds_its_workload_policy(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    policies = clients.compute(compute_v1.ResourcePoliciesClient)
    policy = compute_v1.ResourcePolicy(name="wp", workload_policy={"type_": "HIGH_THROUGHPUT", "accelerator_topology": "1x72"})
    config = {"machine_type": "a4x-highgpu-4g", "accelerators": [{"accelerator_type": "nvidia-gb200", "accelerator_count": 4}], **DRANET}
    more = {"config": config, "network_config": {"accelerator_network_profile": "auto"}, "placement_policy": {"policy_name": "wp"}}
    with pytest.raises(exceptions.NotFound, match='resource policy "wp"'):
        clients.pool(**more)
    clients.done(policies.insert(project=PROJECT, region=REGION, resource_policy_resource=policy))
    clients.done(clients.pool(initial_node_count=1, **more))
    machine = next(iter(clients.compute(compute_v1.InstancesClient).list(project=PROJECT, zone=ZONE)))
    assert len(machine.network_interfaces) == 1 + 1 + 4
    with pytest.raises(exceptions.BadRequest, match="already being used by 'projects/demo/locations/us-central1/clusters/c/nodePools/gpu'"):
        policies.delete(project=PROJECT, region=REGION, resource_policy="wp")
    clients.done(clients.gke.delete_node_pool(name=f"{CLUSTER}/nodePools/gpu"))
    clients.done(policies.delete(project=PROJECT, region=REGION, resource_policy="wp"))


def test_dranet_needs_a_zone_with_roce(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.compute.rules.roce_zones.clear()
    with pytest.raises(exceptions.BadRequest, match="has no RoCE network profile"):
        clients.pool(config=DRANET, network_config={"accelerator_network_profile": "auto"})


def test_a_pool_needs_its_additional_networks_and_their_zone(clients: Clients) -> None:
    clients.ready()
    extra = {"additional_node_network_configs": [{"network": "rdma", "subnetwork": "rdma-0"}]}
    with pytest.raises(exceptions.NotFound, match='network "rdma"'):
        clients.pool(network_config=extra)
    clients.rdma(1)
    with pytest.raises(exceptions.BadRequest, match=f'profile of zone "{ZONE}"'):
        clients.pool(network_config=extra, locations=[f"{REGION}-a"])
    clients.pool(network_config=extra)


def test_a_refused_pool_makes_nothing(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    before = fakes.leftovers()
    with pytest.raises(exceptions.BadRequest):
        clients.pool(network_config={"accelerator_network_profile": "auto"})
    assert fakes.leftovers() == before
