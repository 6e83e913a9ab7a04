"""Faults on purpose, through the clients that will meet them; and the clock."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from google.api_core import exceptions
from google.cloud import compute_v1, container_v1

from tests.fakes.clock import FakeClock
from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PROJECT, Clients
from tuneline.core.clock import Clock, Deadline

NET = f"projects/{PROJECT}/global/networks/net"


def insert(clients: Clients, name: str = "net") -> None:
    clients.compute(compute_v1.NetworksClient).insert(project=PROJECT, network_resource=compute_v1.Network(name=name))


def test_a_fault_before_has_no_effect_and_happens_as_often_as_it_says(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.fail("compute.networks.insert", 403, "Required 'compute.networks.create' permission", reason="forbidden", times=2)
    for _ in range(2):
        with pytest.raises(exceptions.Forbidden, match=r"compute\.networks\.create") as caught:
            insert(clients)
        assert caught.value.errors[0]["reason"] == "forbidden"
    assert fakes.leftovers() == []
    insert(clients)
    assert fakes.leftovers() == [NET]
    assert fakes.unmet() == []


def test_a_lost_answer_took_effect(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.fail("compute.networks.insert", None, after=True)
    with pytest.raises(requests.exceptions.ConnectionError):
        insert(clients)
    assert fakes.leftovers() == [NET]
    assert fakes.calls[-1].status == 0
    fakes.fail("compute.networks.insert", 503, after=True)
    with pytest.raises(exceptions.ServiceUnavailable):
        insert(clients, "other")
    assert len(fakes.leftovers()) == 2


def test_a_connection_that_breaks_before_had_no_effect(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.fail("compute.networks.insert", None)
    with pytest.raises(requests.exceptions.ConnectionError):
        insert(clients)
    assert fakes.leftovers() == []


def test_a_storm_ends_by_virtual_time(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.fail("container.*", 503, times=None, seconds=120)
    with pytest.raises(exceptions.ServiceUnavailable):
        clients.gke.list_operations(parent="projects/demo/locations/-", retry=None)
    clients.network()
    fakes.clock.advance(120)
    assert list(clients.gke.list_operations(parent="projects/demo/locations/-").operations) == []


def test_a_fault_can_be_for_one_resource_only(fakes: GoogleFakes, clients: Clients) -> None:
    fault = fakes.fail("compute.networks.insert", 409, matching='"bad"')
    insert(clients)
    assert fakes.unmet() == [fault]
    with pytest.raises(exceptions.Conflict):
        insert(clients, "bad")


def test_a_slow_call_takes_virtual_time(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.slow("compute.networks.insert", 90)
    insert(clients)
    assert fakes.clock.elapsed == 90


def test_done_is_not_success(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.fail_operation("compute.networks.insert", 403, "Quota 'NETWORKS' exceeded.", reason="quotaExceeded")
    client = clients.compute(compute_v1.NetworksClient)
    done = clients.done(client.insert(project=PROJECT, network_resource=compute_v1.Network(name="net")))
    assert [(item.code, item.message) for item in done.error.errors] == [("QUOTA_EXCEEDED", "Quota 'NETWORKS' exceeded.")]
    assert fakes.leftovers() == []

    clients.network()
    clients.subnet()
    fakes.fail_operation("container.projects.locations.clusters.create", 500, "Internal error.")
    failed = clients.done(clients.cluster())
    assert (failed.error.code, failed.error.message) == (13, "Internal error.")
    assert clients.gke.get_cluster(name=CLUSTER).status == container_v1.Cluster.Status.ERROR
    clients.done(clients.gke.delete_cluster(name=CLUSTER))


def test_what_the_fakes_do_not_play_says_so(fakes: GoogleFakes) -> None:
    answer = requests.get(f"{fakes.endpoints['compute']}/compute/v1/projects/demo/global/routes", timeout=5)
    assert answer.status_code == 501
    assert "does not play compute.routes.list" in answer.json()["error"]["message"]


def test_written_calls_are_the_log_without_reads(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    assert [(call.method, call.body["name"], call.status) for call in fakes.written()] == [("compute.networks.insert", "net", 200)]
    assert len(fakes.calls) > 1


def test_threads_sleep_side_by_side() -> None:
    clock: Clock = FakeClock()
    deadline, began = Deadline.after(clock, 1000), time.monotonic()
    ready = threading.Barrier(8)

    def poll() -> None:
        clock.now()
        ready.wait()
        clock.sleep(100)

    threads = [threading.Thread(target=poll) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() == 100
    assert deadline.left == 900
    assert time.monotonic() - began < 5
    with pytest.raises(ValueError, match="cannot sleep"):
        clock.sleep(-1)


def test_eight_threads_share_the_fakes_and_the_clock(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    began = fakes.clock.elapsed
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: clients.subnet(f"sub-{index}", cidr=f"10.0.{index}.0/24"), range(8)))
    assert len([path for path in fakes.leftovers() if "/subnetworks/" in path]) == 8
    assert fakes.clock.elapsed - began < 60


def test_a_caller_with_a_clock_of_its_own_makes_time_pass_by_asking(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.pace(10)
    operation = clients.compute(compute_v1.NetworksClient).insert(project=PROJECT, network_resource=compute_v1.Network(name="net"))
    client = clients.compute(compute_v1.GlobalOperationsClient)
    looks = [client.get(project=PROJECT, operation=operation.name).status for _ in range(3)]
    assert looks[-1] == compute_v1.Operation.Status.DONE != looks[0]
