"""Clusters and node pools through google-cloud-container's REST transport."""

from __future__ import annotations

import time

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1, container_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PARENT, PROJECT, ZONE, Clients, until

SUCCESS = ""


def managers(clients: Clients) -> list[compute_v1.InstanceGroupManager]:
    client = clients.compute(compute_v1.InstanceGroupManagersClient)
    return [item for _, scope in client.aggregated_list(project=PROJECT) for item in scope.instance_group_managers]


def test_a_cluster_comes_up_is_listed_and_goes_and_no_real_time_passes(fakes: GoogleFakes, clients: Clients) -> None:
    began = time.monotonic()
    clients.network()
    clients.subnet()
    operation = clients.cluster()
    assert operation.target_link.startswith("https://container.googleapis.com/v1/projects/123456789012/locations/us-central1/clusters/")
    assert clients.gke.get_cluster(name=CLUSTER).status == container_v1.Cluster.Status.PROVISIONING
    assert clients.done(operation).error.message == SUCCESS

    cluster = clients.gke.get_cluster(name=CLUSTER)
    assert cluster.status == container_v1.Cluster.Status.RUNNING
    assert cluster.current_node_count == 1
    assert cluster.ip_allocation_policy.cluster_secondary_range_name.endswith(cluster.id[:8])
    assert [pool.name for pool in clients.gke.list_node_pools(parent=CLUSTER).node_pools] == ["cpu"]
    assert [item.name for item in clients.gke.list_clusters(parent=f"projects/{PROJECT}/locations/-").clusters] == ["c"]

    assert clients.done(clients.gke.delete_cluster(name=CLUSTER)).error.message == SUCCESS
    with pytest.raises(exceptions.NotFound):
        clients.gke.get_cluster(name=CLUSTER)
    assert fakes.clock.elapsed > 800
    assert time.monotonic() - began < 5


def test_a_pool_has_a_group_with_a_machine_for_each_node_and_takes_them_with_it(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    assert clients.done(clients.pool(initial_node_count=2)).error.message == SUCCESS
    pool = clients.gke.get_node_pool(name=f"{CLUSTER}/nodePools/gpu")
    assert pool.status == container_v1.NodePool.Status.RUNNING
    group = next(item for item in managers(clients) if item.name.startswith("gke-c-gpu-"))
    assert pool.instance_group_urls[0].endswith(group.name)
    machines = list(clients.compute(compute_v1.InstancesClient).list(project=PROJECT, zone=ZONE))
    assert [machine.status for machine in machines] == ["RUNNING", "RUNNING"]
    assert all(machine.labels["goog-k8s-node-pool-name"] == "gpu" for machine in machines)

    clients.done(clients.gke.delete_node_pool(name=f"{CLUSTER}/nodePools/gpu"))
    assert list(clients.compute(compute_v1.InstancesClient).list(project=PROJECT, zone=ZONE)) == []
    assert [item.name for item in managers(clients) if "gpu" in item.name] == []


def test_the_autoscaler_and_set_size_change_the_number_of_nodes(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    clients.done(clients.pool())
    assert fakes.container.nodes("c", "gpu") == []
    fakes.container.scale("c", "gpu", 3)
    assert until(fakes, lambda: len(fakes.container.nodes("c", "gpu")) == 3) > 60
    with pytest.raises(ValueError, match="cannot bring"):
        fakes.container.scale("c", "gpu", 5)
    clients.done(clients.gke.set_node_pool_size({"name": f"{CLUSTER}/nodePools/gpu", "node_count": 1}))
    assert len(fakes.container.nodes("c", "gpu")) == 1
    clients.done(
        clients.gke.set_node_pool_autoscaling(
            {"name": f"{CLUSTER}/nodePools/gpu", "autoscaling": {"enabled": True, "total_max_node_count": 8}}
        )
    )
    assert clients.gke.get_node_pool(name=f"{CLUSTER}/nodePools/gpu").autoscaling.total_max_node_count == 8


def test_names_taken_and_things_missing(clients: Clients) -> None:
    clients.ready()
    with pytest.raises(exceptions.Conflict, match="Already exists: projects/demo/locations/us-central1/clusters/c"):
        clients.cluster()
    clients.done(clients.pool())
    with pytest.raises(exceptions.Conflict, match="nodePools/gpu"):
        clients.pool()
    with pytest.raises(exceptions.NotFound):
        clients.pool(cluster=f"{PARENT}/clusters/other")
    with pytest.raises(exceptions.NotFound):
        clients.gke.delete_node_pool(name=f"{CLUSTER}/nodePools/other")


def test_an_operation_bars_others_by_its_reason(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    name = fakes.container.busy("c", 600)
    with pytest.raises(exceptions.BadRequest, match=f"incompatible operation {name}") as caught:
        clients.pool()
    assert caught.value.reason == "CLUSTER_ALREADY_HAS_OPERATION"
    assert caught.value.response.json()["error"]["status"] == "FAILED_PRECONDITION"
    running = clients.gke.list_operations(parent=PARENT).operations
    assert [item.name for item in running if item.status != container_v1.Operation.Status.DONE] == [name]
    fakes.clock.advance(600)
    clients.pool()
    with pytest.raises(exceptions.BadRequest, match="incompatible operation"):
        clients.gke.delete_cluster(name=CLUSTER)


def test_the_sixth_pool_at_once_is_one_too_many(clients: Clients) -> None:
    clients.ready()
    for index in range(5):
        clients.pool(f"gpu{index}")
    with pytest.raises(exceptions.TooManyRequests, match="hits the concurrent operations quota 5"):
        clients.pool("gpu5")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"network": "other"}, 'Network "other" does not exist'),
        ({"ip_allocation_policy": {}}, "Dataplane V2 requires IP aliases"),
        ({"network_config": {"enable_multi_networking": True}}, "Multi-networking requires Dataplane V2"),
        (
            {"addons_config": {"gcs_fuse_csi_driver_config": {"enabled": True}}, "workload_identity_config": {}},
            "Workload Identity must be enabled",
        ),
        ({"workload_identity_config": {"workload_pool": "x.svc.id.goog"}}, "Invalid workload pool"),
        ({"autopilot": {"enabled": True}}, "do not support user-specified node pools"),
        ({"locations": ["us-east1-b"]}, "not in location"),
        ({"name": "C"}, "cluster.name"),
    ],
)
def test_clusters_that_gke_refuses(clients: Clients, cluster: dict[str, object], message: str) -> None:
    clients.network()
    clients.subnet()
    with pytest.raises(exceptions.BadRequest, match=message):
        clients.cluster(**cluster)
    assert [item for item in clients.fakes.leftovers() if "/clusters/" in item] == []


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"config": {"spot": True, "flex_start": True}}, "Spot and flex-start"),
        ({"config": {"spot": True, "reservation_affinity": {"consume_reservation_type": "ANY_RESERVATION"}}}, "must be NO_RESERVATION"),
        ({"config": {"flex_start": True}}, "requires reservation affinity NO_RESERVATION"),
        ({"config": {"machine_type": "a3-ultragpu-8g"}}, "do not match machine type"),
        ({"placement_policy": {"type_": "COMPACT"}, "locations": ["us-central1-a", ZONE]}, "exactly one zone"),
        ({"autoscaling": {"enabled": True, "total_max_node_count": 2, "max_node_count": 2}}, "cannot be used together"),
        ({"autoscaling": {"enabled": True}}, "maximum node count"),
        ({"network_config": {"accelerator_network_profile": "auto"}}, "requires the node label"),
        ({"locations": ["us-east1-b"]}, "not in the location"),
        (
            {
                "queued_provisioning": {"enabled": True},
                "autoscaling": {"enabled": True, "total_min_node_count": 1, "total_max_node_count": 2},
            },
            "minimum of zero",
        ),
    ],
)
def test_pools_that_gke_refuses(clients: Clients, pool: dict[str, object], message: str) -> None:
    clients.ready()
    with pytest.raises(exceptions.BadRequest, match=message):
        clients.pool(**pool)
    assert [item.name for item in managers(clients) if "gpu" in item.name] == []


def test_unknown_fields_wrong_types_and_enums_are_refused(fakes: GoogleFakes) -> None:
    import requests

    url = f"{fakes.endpoints['container']}/v1/{PARENT}/clusters"
    body = {"cluster": {"name": "c", "tpuConfig": {}, "initialNodeCount": "x", "releaseChannel": {"channel": "FAST"}}, "extra": 1}
    answer = requests.post(url, json=body, timeout=5)
    assert answer.status_code == 400
    fields = [item["field"] for item in answer.json()["error"]["details"][0]["fieldViolations"]]
    assert fields == ["cluster", "cluster.initialNodeCount", "cluster.releaseChannel.channel", ""]
    assert requests.get(f"{url}?pagesize=3", timeout=5).status_code == 400
    assert requests.get(f"{fakes.endpoints['container']}/v1/{PARENT}/clowns", timeout=5).status_code == 404


def test_the_server_config_names_versions_and_channels(clients: Clients) -> None:
    config = clients.gke.get_server_config(name=PARENT)
    assert config.default_cluster_version in config.valid_master_versions
    assert [item.channel.name for item in config.channels] == ["RAPID", "REGULAR", "STABLE"]


def test_autopilot_refuses_pools_and_makes_its_own(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    clients.subnet()
    clients.done(
        clients.gke.create_cluster(
            {"parent": PARENT, "cluster": {"name": "c", "network": "net", "subnetwork": "sub", "autopilot": {"enabled": True}}}
        )
    )
    cluster = clients.gke.get_cluster(name=CLUSTER)
    assert cluster.workload_identity_config.workload_pool == "demo.svc.id.goog"
    assert cluster.addons_config.gcs_fuse_csi_driver_config.enabled
    with pytest.raises(exceptions.BadRequest, match="Autopilot"):
        clients.pool()
    pool = fakes.container.provision("c", "a4-highgpu-8g", ZONE, 2)
    until(fakes, lambda: len(fakes.container.nodes("c", pool)) == 2)
    fakes.container.scale("c", pool, 0)
    until(fakes, lambda: pool not in [item.name for item in clients.gke.list_node_pools(parent=CLUSTER).node_pools])
