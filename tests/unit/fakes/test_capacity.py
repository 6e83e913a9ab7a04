"""Stock, reservations and quotas: where the errors show, when, and in which words."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1, container_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PROJECT, REGION, ZONE, Clients, until

MACHINE = "a4-highgpu-8g"
NO_RESERVATION = {"reservation_affinity": {"consume_reservation_type": "NO_RESERVATION"}}


def reserved(value: str) -> dict[str, object]:
    affinity = {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": [value]}
    return {"reservation_affinity": affinity}


def group_errors(clients: Clients) -> list[compute_v1.InstanceManagedByIgmError]:
    client = clients.compute(compute_v1.InstanceGroupManagersClient)
    name = next(item.name for item in client.list(project=PROJECT, zone=ZONE) if "gpu" in item.name)
    return list(client.list_errors(project=PROJECT, zone=ZONE, instance_group_manager=name))


def test_a_stockout_shows_in_the_group_within_minutes_and_in_the_operation_after_35(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.capacity.set_stock(MACHINE, ZONE, 1)
    operation = clients.pool(initial_node_count=2)
    assert until(fakes, lambda: bool(group_errors(clients))) < 180
    error = group_errors(clients)[0].error
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert f"zones/{ZONE}' does not have enough resources available" in error.message

    began = fakes.clock.now()
    done = clients.done(operation)
    assert fakes.clock.now() - began > 30 * 60
    assert "Not all instances running in IGM after 35m. Expected 2, running 1, transitioning 1. Current errors: [GCE_STOCKOUT]" in (
        done.error.message
    )
    assert done.nodepool_conditions[0].code == container_v1.StatusCondition.Code.GCE_STOCKOUT
    pool = clients.gke.get_node_pool(name=f"{CLUSTER}/nodePools/gpu")
    assert pool.status == container_v1.NodePool.Status.RUNNING_WITH_ERROR
    assert pool.conditions[0].code == container_v1.StatusCondition.Code.GCE_STOCKOUT


def test_stock_that_comes_back_in_time_saves_the_pool(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.capacity.set_stock(MACHINE, ZONE, 0)
    operation = clients.pool(initial_node_count=1)
    until(fakes, lambda: len(group_errors(clients)) == 2)
    fakes.capacity.set_stock(MACHINE, ZONE, 1)
    assert clients.done(operation).error.message == ""
    assert len(fakes.container.nodes("c", "gpu")) == 1


def test_a_quota_that_is_too_small_stops_a_pool_before_it_begins(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.capacity.set_quota(PROJECT, "NVIDIA_B200_GPUS", 8, REGION)
    with pytest.raises(exceptions.Forbidden) as caught:
        clients.pool(initial_node_count=2)
    assert (
        "Insufficient regional quota to satisfy request: resource \"NVIDIA_B200_GPUS\": request requires '16.0' and is short '8.0'. "
        "project has a quota of '8.0' with '8.0' available."
    ) in caught.value.message
    quotas = clients.compute(compute_v1.RegionsClient).get(project=PROJECT, region=REGION).quotas
    assert [(item.metric, item.limit, item.usage) for item in quotas] == [("NVIDIA_B200_GPUS", 8.0, 0.0)]


def test_a_quota_that_the_autoscaler_meets_shows_in_the_group(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.capacity.set_quota(PROJECT, "PREEMPTIBLE_NVIDIA_B200_GPUS", 8, REGION)
    clients.done(clients.pool(config={"spot": True, **NO_RESERVATION}))
    fakes.container.scale("c", "gpu", 2)
    until(fakes, lambda: bool(group_errors(clients)))
    error = group_errors(clients)[0].error
    assert error.code == "QUOTA_EXCEEDED"
    assert error.message == f"Quota 'PREEMPTIBLE_NVIDIA_B200_GPUS' exceeded.  Limit: 8.0 in region {REGION}."
    assert next(iter(clients.compute(compute_v1.InstancesClient).list(project=PROJECT, zone=ZONE))).scheduling.provisioning_model == "SPOT"


@pytest.mark.parametrize("value", ["res", f"projects/{PROJECT}/reservations/res", "res/reservationBlocks/b1"])
def test_a_reservation_counts_the_machines_that_use_it(fakes: GoogleFakes, clients: Clients, value: str) -> None:
    clients.ready()
    fakes.capacity.reserve(PROJECT, "res", ZONE, MACHINE, 2, blocks={"b1": 2})
    fakes.capacity.set_stock(MACHINE, ZONE, 0)
    clients.done(clients.pool(initial_node_count=2, config=reserved(value)))

    def used() -> int:
        found = clients.compute(compute_v1.ReservationsClient).get(project=PROJECT, zone=ZONE, reservation="res")
        return int(found.specific_reservation.in_use_count)

    assert used() == 2
    clients.done(clients.gke.delete_node_pool(name=f"{CLUSTER}/nodePools/gpu"))
    assert used() == 0


@pytest.mark.parametrize(
    ("value", "more", "error", "message"),
    [
        ("other", {}, exceptions.NotFound, f'reservation "other" not found for node pool "gpu" at zone "{ZONE}"'),
        ("res/reservationBlocks/b9", {}, exceptions.NotFound, "not found for node pool"),
        ("res", {"initial_node_count": 3}, exceptions.TooManyRequests, "required 3 and short of 1 VM count of machine type a4-highgpu-8g"),
        ("small", {}, exceptions.BadRequest, 'is of machine type "a3-ultragpu-8g"'),
        ("open", {}, exceptions.BadRequest, "specificReservationRequired is not set"),
    ],
)
def test_reservations_that_do_not_fit(
    fakes: GoogleFakes, clients: Clients, value: str, more: dict[str, object], error: type[Exception], message: str
) -> None:
    clients.ready()
    fakes.capacity.reserve(PROJECT, "res", ZONE, MACHINE, 2, blocks={"b1": 2})
    fakes.capacity.reserve(PROJECT, "small", ZONE, "a3-ultragpu-8g", 2)
    fakes.capacity.reserve(PROJECT, "open", ZONE, MACHINE, 2, specific=False)
    with pytest.raises(error, match=message):
        clients.pool(config=reserved(value), **more)


def test_a_reservation_that_others_use_up_shows_in_the_group(fakes: GoogleFakes, clients: Clients) -> None:
    clients.ready()
    fakes.capacity.reserve(PROJECT, "res", ZONE, MACHINE, 1)
    clients.done(clients.pool(config=reserved("res")))
    fakes.container.scale("c", "gpu", 2)
    until(fakes, lambda: bool(group_errors(clients)))
    assert group_errors(clients)[0].error.code == "RESERVATION_INSUFFICIENT_CAPACITY"
    assert len(fakes.container.nodes("c", "gpu")) <= 1


def test_a_cpu_pool_without_stock_fails_the_whole_cluster(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    clients.subnet()
    fakes.capacity.set_stock("e2-medium", f"{REGION}-a", 0)
    done = clients.done(clients.cluster())
    assert done.cluster_conditions[0].code == container_v1.StatusCondition.Code.GCE_STOCKOUT
    assert clients.gke.get_cluster(name=CLUSTER).status == container_v1.Cluster.Status.ERROR
    clients.done(clients.gke.delete_cluster(name=CLUSTER))
