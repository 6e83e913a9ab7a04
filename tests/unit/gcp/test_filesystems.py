"""Lustre and the peering that leads to it, against fakes that Google's clients drive."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1, lustre_v1

from tests.fakes.google import GoogleFakes
from tests.unit.gcp.conftest import OTHER
from tuneline.gcp import compute, lustre, peering
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import Conflict, InUse, Stockout
from tuneline.gcp.ownership import Mark

NUMBER, ZONE, NETWORK = "123456789012", "us-central1-b", "projects/demo/global/networks/default"


def address(google: Google, mark: Mark, name: str) -> str:
    body = compute_v1.Address(
        name=name, labels=mark.labels, purpose="VPC_PEERING", address_type="INTERNAL", prefix_length=20, network=NETWORK
    )
    return compute.ensure_resource(google, compute.ADDRESS, body, mark).name


def instance(mark: Mark, **fields: Any) -> lustre_v1.Instance:
    body = {"filesystem": "lustrefs", "capacity_gib": 18000, "per_unit_storage_throughput": 500, "network": NETWORK}
    return lustre_v1.Instance(labels=mark.labels, **{**body, **fields})


@pytest.fixture
def connected(google: Google, mark: Mark) -> str:
    """The name of our range, in the connection of `default`."""
    name = address(google, mark, "ours")
    peering.ensure_connection(google, NUMBER, "default", name)
    return name


def held(fakes: GoogleFakes) -> list[str]:
    entry = fakes.world.get(f"{NETWORK}/connections/{peering.PEERING}")
    return list(entry.body["reservedPeeringRanges"]) if entry else []


def test_connected_once(fakes: GoogleFakes, google: Google, connected: str) -> None:
    peering.ensure_connection(google, NUMBER, "default", connected)
    assert held(fakes) == ["ours"]
    assert [call.method for call in fakes.written()].count("servicenetworking.services.connections.create") == 1


def test_ranges_of_others_stay(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    peering.ensure_connection(google, NUMBER, "default", address(google, OTHER, "theirs"))
    peering.ensure_connection(google, NUMBER, "default", address(google, mark, "ours"))
    assert held(fakes) == ["theirs", "ours"]
    assert peering.release_range(google, NUMBER, "default", "ours", mark.run)
    assert held(fakes) == ["theirs"]
    assert not peering.release_range(google, NUMBER, "default", "ours", mark.run)


def test_storms_are_waited_out(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail("servicenetworking.*", 503, times=3)
    fakes.fail("servicenetworking.services.connections.create", None, after=True)
    peering.ensure_connection(google, NUMBER, "default", address(google, mark, "ours"))
    assert held(fakes) == ["ours"]
    assert fakes.unmet() == []


def test_the_connection_goes_with_its_last_range_once_the_producer_lets_go(
    fakes: GoogleFakes, google: Google, mark: Mark, connected: str
) -> None:
    lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark)
    lustre.delete_instance(google, ZONE, "fs", mark.run)
    fakes.fail("servicenetworking.services.connections.deleteConnection", 503, times=2)
    assert peering.release_range(google, NUMBER, "default", connected, mark.run)
    assert held(fakes) == []
    assert fakes.unmet() == []


def test_a_producer_that_never_lets_go_is_cut(fakes: GoogleFakes, google: Google, mark: Mark, connected: str) -> None:
    fakes.servicenetworking.linger = 1e9
    lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark)
    lustre.delete_instance(google, ZONE, "fs", mark.run)
    assert peering.release_range(google, NUMBER, "default", connected, mark.run)
    assert held(fakes) == []
    assert any(call.method == "compute.networks.removePeering" for call in fakes.calls)


def test_a_producer_in_use_is_named_at_the_deadline(fakes: GoogleFakes, google: Google, mark: Mark, connected: str) -> None:
    lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark)
    fakes.fail("compute.networks.removePeering", 400, "The peering is being used by a producer", times=None)
    with pytest.raises(InUse, match="used by a producer"):
        peering.release_range(google, NUMBER, "default", connected, mark.run)


def test_lustre_is_made_once_and_mounts(fakes: GoogleFakes, google: Google, mark: Mark, connected: str) -> None:
    for _ in range(2):
        found = lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark)
        assert found.created
        assert found.resource.mount_point.endswith("@tcp:/lustrefs")
    assert [call.method for call in fakes.written()].count("lustre.projects.locations.instances.create") == 1
    assert not lustre.ensure_instance(google, ZONE, "fs", instance(OTHER), OTHER).created


def test_another_size_is_a_conflict(google: Google, mark: Mark, connected: str) -> None:
    lustre.ensure_instance(google, ZONE, "fs", instance(OTHER), OTHER)
    with pytest.raises(Conflict, match="capacity_gib: asked '36000', found '18000'"):
        lustre.ensure_instance(google, ZONE, "fs", instance(mark, capacity_gib=36000), mark)


def test_an_instance_in_flight_is_waited_for(fakes: GoogleFakes, google: Google, mark: Mark, connected: str) -> None:
    parent = f"projects/demo/locations/{ZONE}"
    google.lustre.create_instance({"parent": parent, "instance_id": "fs", "instance": instance(mark)})
    fakes.clock.advance(100)
    assert lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark).created


def test_a_full_zone_is_a_stockout_and_leaves_nothing(fakes: GoogleFakes, google: Google, mark: Mark, connected: str) -> None:
    fakes.fail_operation("lustre.projects.locations.instances.create", 500, "an internal error has occurred", rpc="INTERNAL")
    with pytest.raises(Stockout, match="could not make Lustre fs") as caught:
        lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark)
    assert "infra_zone" in caught.value.next_move
    assert lustre.get_instance(google, ZONE, "fs") is None
    assert lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark).created


def test_made_deleted_and_made_again(google: Google, mark: Mark, connected: str) -> None:
    for _ in range(2):
        assert lustre.ensure_instance(google, ZONE, "fs", instance(mark), mark).created
        assert lustre.delete_instance(google, ZONE, "fs", mark.run)
    assert not lustre.delete_instance(google, ZONE, "fs", mark.run)
