"""Private services access and Managed Lustre, in the order in which they depend on each other."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1, lustre_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import PROJECT, ZONE, Clients, until

NUMBER = "123456789012"
NETWORK = f"projects/{NUMBER}/global/networks/net"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
SERVICE = "services/servicenetworking.googleapis.com"
CONNECTION = f"{SERVICE}/connections/servicenetworking-googleapis-com"


def reserve(clients: Clients, name: str = "psa") -> None:
    body = compute_v1.Address(name=name, purpose="VPC_PEERING", address_type="INTERNAL", prefix_length=20, network="global/networks/net")
    clients.done(clients.compute(compute_v1.GlobalAddressesClient).insert(project=PROJECT, address_resource=body))


def ended(clients: Clients, operation: dict[str, Any]) -> dict[str, Any]:
    """The Service Networking operation, once it is done."""
    service = clients.discovered("servicenetworking", "v1")
    for _ in range(100):
        clients.fakes.clock.sleep(10)
        operation = service.operations().get(name=operation["name"]).execute()
        if operation.get("done"):
            return operation
    raise AssertionError(operation)


def connections(clients: Clients) -> Any:
    return clients.discovered("servicenetworking", "v1").services().connections()


def connect(clients: Clients, *ranges: str) -> dict[str, Any]:
    return ended(clients, connections(clients).create(parent=SERVICE, body={"network": NETWORK, "reservedPeeringRanges": ranges}).execute())


def disconnect(clients: Clients) -> dict[str, Any]:
    return ended(clients, connections(clients).deleteConnection(name=CONNECTION, body={"consumerNetwork": NETWORK}).execute())


def instance(**more: Any) -> lustre_v1.Instance:
    body = {
        "filesystem": "lustrefs",
        "capacity_gib": 18000,
        "per_unit_storage_throughput": 500,
        "network": f"projects/{PROJECT}/global/networks/net",
        "labels": {"managed-by": "tuneline"},
        **more,
    }
    return lustre_v1.Instance(body)


def create(clients: Clients, name: str = "fs", parent: str = PARENT, **more: Any) -> Any:
    return clients.rest(lustre_v1.LustreClient).create_instance(parent=parent, instance_id=name, instance=instance(**more))


def finished(clients: Clients, name: str) -> bool:
    return bool(clients.rest(lustre_v1.LustreClient).get_operation({"name": name}).done)


def test_a_connection_needs_a_range_of_its_network(clients: Clients) -> None:
    clients.network()
    assert connect(clients, "psa")["error"]["message"] == "Allocated IP range 'psa' not found in network."
    reserve(clients)
    assert connect(clients, "psa")["response"]["peering"] == "servicenetworking-googleapis-com"
    assert connections(clients).list(parent=SERVICE, network=NETWORK).execute()["connections"][0]["reservedPeeringRanges"] == ["psa"]
    peerings = clients.compute(compute_v1.NetworksClient).get(project=PROJECT, network="net").peerings
    assert [item.name for item in peerings] == ["servicenetworking-googleapis-com"]


def test_a_network_is_named_by_its_projects_number(clients: Clients) -> None:
    from googleapiclient.errors import HttpError

    clients.network()
    with pytest.raises(HttpError, match="project_number"):
        connections(clients).create(parent=SERVICE, body={"network": f"projects/{PROJECT}/global/networks/net"}).execute()
    with pytest.raises(HttpError, match="Unknown name"):
        connections(clients).create(parent=SERVICE, body={"network": NETWORK, "ranges": []}).execute()


def test_ranges_change_by_patch_only_and_go_only_by_force(clients: Clients) -> None:
    clients.network()
    reserve(clients)
    reserve(clients, "more")
    connect(clients, "psa")
    refused = connect(clients, "psa", "more")["error"]
    assert refused["code"] == 9
    assert "Cannot modify allocated ranges in CreateConnection. Please use UpdateConnection." in refused["message"]

    def patch(*ranges: str, force: bool = False) -> dict[str, Any]:
        body = {"network": NETWORK, "reservedPeeringRanges": ranges}
        return ended(clients, connections(clients).patch(name=CONNECTION, body=body, force=force).execute())

    assert patch("psa", "more")["response"]["reservedPeeringRanges"] == ["psa", "more"]
    assert "without force" in patch("more")["error"]["message"]
    assert patch("more", force=True)["response"]["reservedPeeringRanges"] == ["more"]


def test_an_instance_comes_up_in_about_ten_minutes_and_goes(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    with pytest.raises(exceptions.BadRequest, match="no private services access connection"):
        create(clients)
    reserve(clients)
    connect(clients, "psa")
    operation = create(clients)
    client = clients.rest(lustre_v1.LustreClient)
    assert client.get_instance(name=f"{PARENT}/instances/fs").state == lustre_v1.Instance.State.CREATING
    assert 500 < until(fakes, lambda: finished(clients, operation.operation.name)) < 900
    made = client.get_instance(name=f"{PARENT}/instances/fs")
    assert made.state == lustre_v1.Instance.State.ACTIVE
    assert made.mount_point.endswith("@tcp:/lustrefs")
    assert operation.result(timeout=1).name == f"{PARENT}/instances/fs"
    assert [item.name for item in client.list_instances(parent=PARENT)] == [f"{PARENT}/instances/fs"]
    with pytest.raises(exceptions.Conflict, match="already exists"):
        create(clients)

    gone = client.delete_instance(name=f"{PARENT}/instances/fs")
    until(fakes, lambda: finished(clients, gone.operation.name))
    with pytest.raises(exceptions.NotFound):
        client.get_instance(name=f"{PARENT}/instances/fs")


def test_the_connection_stays_while_a_producer_lives_and_minutes_longer(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    reserve(clients)
    connect(clients, "psa")
    create(clients)
    fakes.clock.advance(1000)
    assert "are still using this connection" in disconnect(clients)["error"]["message"]
    clients.rest(lustre_v1.LustreClient).delete_instance(name=f"{PARENT}/instances/fs")
    fakes.clock.advance(301)
    assert disconnect(clients)["error"]["code"] == 9
    networks = clients.compute(compute_v1.NetworksClient)
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        networks.delete(project=PROJECT, network="net")
    fakes.clock.advance(600)
    assert "error" not in disconnect(clients)
    clients.done(clients.compute(compute_v1.GlobalAddressesClient).delete(project=PROJECT, address="psa"))
    clients.done(networks.delete(project=PROJECT, network="net"))
    assert fakes.leftovers() == []


def test_the_peering_can_be_removed_from_the_networks_side(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    reserve(clients)
    connect(clients, "psa")
    networks = clients.compute(compute_v1.NetworksClient)
    ask = {"name": "servicenetworking-googleapis-com"}
    clients.done(networks.remove_peering(project=PROJECT, network="net", networks_remove_peering_request_resource=ask))
    assert connections(clients).list(parent=SERVICE, network=NETWORK).execute()["connections"] == []
    with pytest.raises(exceptions.BadRequest, match="There is no peering"):
        networks.remove_peering(project=PROJECT, network="net", networks_remove_peering_request_resource=ask)


def test_an_equal_request_id_is_the_same_operation(clients: Clients) -> None:
    clients.network()
    reserve(clients)
    connect(clients, "psa")
    ask = {"parent": PARENT, "instance_id": "fs", "instance": instance(), "request_id": "6f3a3a1e-0000-4000-8000-000000000001"}
    client = clients.rest(lustre_v1.LustreClient)
    assert client.create_instance(ask).operation.name == client.create_instance(ask).operation.name


def test_an_internal_error_leaves_an_instance_that_can_be_deleted(fakes: GoogleFakes, clients: Clients) -> None:
    clients.network()
    reserve(clients)
    connect(clients, "psa")
    fakes.fail_operation("lustre.projects.locations.instances.create", message="an internal error has occurred")
    operation = create(clients)
    until(fakes, lambda: finished(clients, operation.operation.name))
    with pytest.raises(exceptions.InternalServerError, match="an internal error has occurred"):
        operation.result(timeout=1)
    client = clients.rest(lustre_v1.LustreClient)
    assert client.get_instance(name=f"{PARENT}/instances/fs").state == lustre_v1.Instance.State.STOPPED
    client.delete_instance(name=f"{PARENT}/instances/fs")
    fakes.clock.advance(301)
    assert list(client.list_instances(parent=PARENT)) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"filesystem": "lustre-fs"}, "filesystem must be"),
        ({"filesystem": "lustrefs9"}, "filesystem must be"),
        ({"per_unit_storage_throughput": 300}, "must be one of"),
        ({"capacity_gib": 20000}, "multiple of 18000"),
        ({"network": "global/networks/net"}, "network must be"),
        ({"parent": f"projects/{PROJECT}/locations/us-central1"}, "is not a zone"),
    ],
)
def test_instances_that_lustre_refuses(clients: Clients, more: dict[str, Any], message: str) -> None:
    clients.network()
    reserve(clients)
    connect(clients, "psa")
    with pytest.raises(exceptions.BadRequest, match=message):
        create(clients, **more)


def test_unknown_fields_are_refused_by_the_descriptors(fakes: GoogleFakes) -> None:
    import requests

    url = f"{fakes.endpoints['lustre']}/v1/{PARENT}/instances?instanceId=fs"
    for body in ({"fileSystem": "x"}, {"capacityGib": "much"}, {"state": "AWAKE"}):
        assert requests.post(url, json=body, timeout=5).status_code == 400
    assert requests.post(f"{url}&size=1", json={}, timeout=5).status_code == 400
