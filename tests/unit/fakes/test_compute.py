"""Networks, subnetworks, firewalls, addresses, policies and reservations through google-cloud-compute."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PROJECT, REGION, ZONE, Clients, until


def firewall(name: str = "internal", network: str = "net") -> compute_v1.Firewall:
    allowed = [compute_v1.Allowed(I_p_protocol="tcp", ports=["0-65535"])]
    return compute_v1.Firewall(name=name, network=f"global/networks/{network}", source_ranges=["192.168.0.0/16"], allowed=allowed)


def address(name: str = "psa", network: str = "net") -> compute_v1.Address:
    return compute_v1.Address(
        name=name,
        purpose="VPC_PEERING",
        address_type="INTERNAL",
        prefix_length=20,
        network=f"projects/{PROJECT}/global/networks/{network}",
        labels={"managed-by": "tuneline"},
    )


RESOURCES: dict[str, tuple[type[Any], dict[str, Any], str, Callable[[], Any], str]] = {
    "firewalls": (compute_v1.FirewallsClient, {}, "firewall", firewall, "internal"),
    "addresses": (compute_v1.GlobalAddressesClient, {}, "address", address, "psa"),
    "resource policies": (
        compute_v1.ResourcePoliciesClient,
        {"region": REGION},
        "resource_policy",
        lambda: compute_v1.ResourcePolicy(
            name="w", workload_policy=compute_v1.ResourcePolicyWorkloadPolicy(type_="HIGH_THROUGHPUT", accelerator_topology="1x72")
        ),
        "w",
    ),
    "subnetworks": (
        compute_v1.SubnetworksClient,
        {"region": REGION},
        "subnetwork",
        lambda: compute_v1.Subnetwork(name="sub", network="global/networks/net", ip_cidr_range="10.1.0.0/20"),
        "sub",
    ),
    "endpoint groups": (
        compute_v1.NetworkEndpointGroupsClient,
        {"zone": ZONE},
        "network_endpoint_group",
        lambda: compute_v1.NetworkEndpointGroup(name="k8s1-x", network="global/networks/net", network_endpoint_type="GCE_VM_IP_PORT"),
        "k8s1-x",
    ),
    "disks": (compute_v1.DisksClient, {"zone": ZONE}, "disk", lambda: compute_v1.Disk(name="pvc-1", size_gb=10), "pvc-1"),
    "forwarding rules": (
        compute_v1.ForwardingRulesClient,
        {"region": REGION},
        "forwarding_rule",
        lambda: compute_v1.ForwardingRule(name="lb", network="global/networks/net", load_balancing_scheme="INTERNAL"),
        "lb",
    ),
}


@pytest.mark.parametrize("kind", RESOURCES)
def test_each_resource_is_made_shown_listed_and_deleted(fakes: GoogleFakes, clients: Clients, kind: str) -> None:
    client_type, place, word, body, name = RESOURCES[kind]
    clients.network()
    client = clients.compute(client_type)
    client.insert(project=PROJECT, **place, **{f"{word}_resource": body()})
    with pytest.raises(exceptions.Conflict, match="already exists"):
        client.insert(project=PROJECT, **place, **{f"{word}_resource": body()})
    with pytest.raises(exceptions.BadRequest, match="is not ready"):
        client.delete(project=PROJECT, **place, **{word: name})
    fakes.clock.advance(60)
    made = client.get(project=PROJECT, **place, **{word: name})
    assert made.self_link.endswith(f"/{name}")
    assert made.creation_timestamp.startswith("2030-01-01T00:00:3")
    assert [item.name for item in client.list(project=PROJECT, **place)] == [name]
    done = clients.done(client.delete(project=PROJECT, **place, **{word: name}))
    assert not done.error.errors
    with pytest.raises(exceptions.NotFound, match="was not found"):
        client.get(project=PROJECT, **place, **{word: name})
    assert fakes.leftovers() == [f"projects/{PROJECT}/global/networks/net"]


def test_a_network_stays_while_anything_is_in_it(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    clients.subnet()
    networks = clients.compute(compute_v1.NetworksClient)
    assert networks.get(project=PROJECT, network="net").subnetworks[0].endswith("subnetworks/sub")
    clients.done(clients.compute(compute_v1.FirewallsClient).insert(project=PROJECT, firewall_resource=firewall()))
    clients.done(clients.compute(compute_v1.GlobalAddressesClient).insert(project=PROJECT, address_resource=address()))
    for client, place, word, name in (
        (compute_v1.SubnetworksClient, {"region": REGION}, "subnetwork", "sub"),
        (compute_v1.FirewallsClient, {}, "firewall", "internal"),
        (compute_v1.GlobalAddressesClient, {}, "address", "psa"),
    ):
        with pytest.raises(exceptions.BadRequest, match="is already being used by") as caught:
            networks.delete(project=PROJECT, network="net")
        assert caught.value.errors[0]["reason"] == "resourceInUseByAnotherResource"
        clients.done(clients.compute(client).delete(project=PROJECT, **place, **{word: name}))
    assert not clients.done(networks.delete(project=PROJECT, network="net")).error.errors
    assert fakes.leftovers() == []


def test_a_deletion_that_something_overtakes_fails_in_its_operation(clients: Clients) -> None:
    clients.network()
    networks = clients.compute(compute_v1.NetworksClient)
    operation = networks.delete(project=PROJECT, network="net")
    clients.fakes.compute.plant("disks", ZONE, {"name": "late"}, PROJECT, {f"projects/{PROJECT}/global/networks/net"})
    done = clients.done(operation)
    assert done.error.errors[0].code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert done.http_error_status_code == 400
    assert networks.get(project=PROJECT, network="net").name == "net"


def test_an_equal_request_id_is_the_same_operation(clients: Clients) -> None:
    networks = clients.compute(compute_v1.NetworksClient)
    ask = {"project": PROJECT, "network_resource": {"name": "net"}, "request_id": str(uuid.uuid4())}
    first, second = networks.insert(request=ask), networks.insert(request=ask)
    assert first.name == second.name
    with pytest.raises(exceptions.Conflict):
        networks.insert(request={**ask, "request_id": str(uuid.uuid4())})


def test_a_subnetwork_needs_a_network_that_is_there_and_ready_and_a_free_range(clients: Clients) -> None:
    subnets = clients.compute(compute_v1.SubnetworksClient)

    def insert(name: str, cidr: str) -> None:
        body = compute_v1.Subnetwork(name=name, network="global/networks/net", ip_cidr_range=cidr)
        subnets.insert(project=PROJECT, region=REGION, subnetwork_resource=body)

    with pytest.raises(exceptions.NotFound, match="networks/net"):
        insert("a", "10.0.0.0/24")
    clients.compute(compute_v1.NetworksClient).insert(project=PROJECT, network_resource=compute_v1.Network(name="net"))
    with pytest.raises(exceptions.BadRequest, match="networks/net' is not ready"):
        insert("a", "10.0.0.0/24")
    clients.fakes.clock.advance(60)
    insert("a", "10.0.0.0/24")
    with pytest.raises(exceptions.BadRequest, match="conflicts with existing subnetwork 'a'"):
        insert("b", "10.0.0.128/25")
    with pytest.raises(exceptions.BadRequest, match="Invalid IPCidrRange"):
        insert("c", "10.0.0.1/24")


def test_roce_networks_need_their_zone_and_take_no_firewall(fakes: GoogleFakes, clients: Clients) -> None:
    profiles = clients.compute(compute_v1.NetworkProfilesClient)
    assert profiles.get(project=PROJECT, network_profile=f"{ZONE}-vpc-roce").location.name == ZONE
    assert f"{ZONE}-vpc-roce" in [item.name for item in profiles.list(project=PROJECT)]
    with pytest.raises(exceptions.NotFound):
        profiles.get(project=PROJECT, network_profile="us-central1-vpc-roce")
    with pytest.raises(exceptions.NotFound, match="us-central1-f-vpc-roce"):
        clients.network("wrong", network_profile="global/networkProfiles/us-central1-f-vpc-roce")
    clients.rdma(2)
    with pytest.raises(exceptions.BadRequest, match="must be in region 'us-central1'"):
        clients.subnet("far", "rdma", "10.9.0.0/24", region="us-east1")
    with pytest.raises(exceptions.BadRequest, match="not supported on networks with a RoCE network profile"):
        clients.compute(compute_v1.FirewallsClient).insert(project=PROJECT, firewall_resource=firewall(network="rdma"))
    assert len(fakes.leftovers()) == 3


def test_roce_networks_stay_in_use_for_minutes_after_the_last_machine(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    clients.rdma(8)
    extra = [{"network": "rdma", "subnetwork": f"rdma-{index}"} for index in range(8)]
    clients.done(clients.pool(initial_node_count=1, network_config={"additional_node_network_configs": extra}))
    machine = next(iter(clients.compute(compute_v1.InstancesClient).list(project=PROJECT, zone=ZONE)))
    assert len(machine.network_interfaces) == 9
    clients.done(clients.gke.delete_node_pool(name=f"{CLUSTER}/nodePools/gpu"))
    subnets = clients.compute(compute_v1.SubnetworksClient)
    with pytest.raises(exceptions.BadRequest, match="networkInstances"):
        subnets.delete(project=PROJECT, region=REGION, subnetwork="rdma-0")

    def free() -> bool:
        try:
            subnets.delete(project=PROJECT, region=REGION, subnetwork="rdma-0")
        except exceptions.BadRequest:
            return False
        return True

    assert 200 < until(fakes, free) < 600


def test_lists_have_pages_filters_and_an_aggregate(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.compute.page_size = 2
    for name in ("gke-a", "gke-b", "k8s-c", "mine"):
        fakes.compute.plant("firewalls", "global", {"name": name, "network": "global/networks/default"}, PROJECT)
        fakes.compute.plant("disks", f"{REGION}-{name[0]}", {"name": name, "labels": {"run": name}}, PROJECT)
    client = clients.compute(compute_v1.FirewallsClient)
    assert [item.name for item in client.list(project=PROJECT)] == ["gke-a", "gke-b", "k8s-c", "mine"]

    def found(expression: str) -> list[str]:
        return [item.name for item in client.list(request={"project": PROJECT, "filter": expression})]

    assert found('name eq "(gke|k8s)-.*"') == ["gke-a", "gke-b", "k8s-c"]
    assert found("name=gke-*") == ["gke-a", "gke-b"]
    assert found("name:k8s* OR name=mine") == ["k8s-c", "mine"]
    assert found("(name != gke-a) AND (name:gke)") == ["gke-b"]
    with pytest.raises(exceptions.BadRequest, match="Invalid list filter expression"):
        found("name ~~ x")
    disks = clients.compute(compute_v1.DisksClient).aggregated_list(request={"project": PROJECT, "filter": "labels.run=k8s-c"})
    assert {scope: [disk.name for disk in found.disks] for scope, found in disks} == {f"zones/{REGION}-k": ["k8s-c"]}


def test_reservations_show_what_is_used_and_their_blocks(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.capacity.reserve(PROJECT, "res", ZONE, "a4-highgpu-8g", 4, blocks={"b1": 2, "b2": 2})
    found = clients.compute(compute_v1.ReservationsClient).get(project=PROJECT, zone=ZONE, reservation="res")
    assert (found.status, found.specific_reservation.count, found.specific_reservation.in_use_count) == ("READY", 4, 0)
    assert found.specific_reservation_required
    blocks = clients.compute(compute_v1.ReservationBlocksClient).list(project=PROJECT, zone=ZONE, reservation="res")
    assert [(item.name, item.count) for item in blocks] == [("b1", 2), ("b2", 2)]
    with pytest.raises(exceptions.NotFound):
        clients.compute(compute_v1.ReservationsClient).get(project=PROJECT, zone=f"{REGION}-a", reservation="res")


def test_counting_quotas_name_metric_and_limit(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.capacity.set_quota(PROJECT, "NETWORKS", 2)
    clients.network("one")
    with pytest.raises(exceptions.Forbidden, match=r"Quota 'NETWORKS' exceeded\.  Limit: 2\.0 globally") as caught:
        clients.network("two")
    assert caught.value.errors[0]["reason"] == "quotaExceeded"
    assert caught.value.metadata["metricName"] == "NETWORKS"
    shown = clients.compute(compute_v1.ProjectsClient).get(project=PROJECT).quotas
    assert [(item.metric, item.limit, item.usage) for item in shown] == [("NETWORKS", 2.0, 2.0)]


def test_a_wait_lets_virtual_time_pass(fakes: GoogleFakes, clients: Clients) -> None:
    operation = clients.compute(compute_v1.NetworksClient).insert(project=PROJECT, network_resource=compute_v1.Network(name="net"))
    done = clients.compute(compute_v1.GlobalOperationsClient).wait(project=PROJECT, operation=operation.name)
    assert done.status == compute_v1.Operation.Status.DONE
    assert fakes.clock.elapsed == 30
