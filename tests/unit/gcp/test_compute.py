"""Networks and their kin, against the fake that Google's client drives."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from tests.fakes.google import GoogleFakes
from tests.unit.gcp.conftest import OTHER
from tuneline.gcp import capacity, compute
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import Conflict, InUse, NotFound, Permission, Quota, ReservationMismatch, WaitedTooLong
from tuneline.gcp.ownership import Mark

REGION, ZONE = "us-central1", "us-central1-b"


def network(mark: Mark | None, name: str = "net", **fields: Any) -> compute_v1.Network:
    description = mark.description if mark else ""
    return compute_v1.Network(name=name, description=description, **{"mtu": 8896, "auto_create_subnetworks": False, **fields})


def subnet(mark: Mark, number: int, net: str = "net") -> compute_v1.Subnetwork:
    return compute_v1.Subnetwork(
        name=f"sub-{number}",
        description=mark.description,
        network=f"projects/demo/global/networks/{net}",
        ip_cidr_range=f"192.168.{number}.0/24",
        region=f"projects/demo/regions/{REGION}",
    )


def inserts(fakes: GoogleFakes) -> list[str]:
    return [call.body["name"] for call in fakes.calls if call.method.endswith(".insert") and call.status == 200]


def test_created_once_and_found_again(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    for _ in range(2):
        assert compute.ensure_resource(google, compute.NETWORK, network(mark), mark).created
    assert inserts(fakes) == ["net"]


def test_anothers_is_adopted(google: Google, mark: Mark) -> None:
    compute.ensure_resource(google, compute.NETWORK, network(OTHER), OTHER)
    assert not compute.ensure_resource(google, compute.NETWORK, network(mark), mark).created


def test_a_different_one_is_a_conflict_that_names_both_values(google: Google, mark: Mark) -> None:
    compute.ensure_resource(google, compute.NETWORK, network(OTHER, mtu=1460), OTHER)
    with pytest.raises(Conflict, match="mtu: asked 8896, found 1460") as caught:
        compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    assert OTHER.run in caught.value.found


def test_a_storm_and_lost_answers_make_no_duplicate(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail("compute.networks.insert", 503, times=2)
    fakes.fail("compute.networks.insert", None, after=True)
    fakes.fail("compute.globalOperations.get", 503, times=3)
    assert compute.ensure_resource(google, compute.NETWORK, network(mark), mark).created
    assert fakes.unmet() == []
    assert [path for path in fakes.leftovers() if "/networks/" in path] == ["projects/demo/global/networks/net"]


def test_a_failed_insert_is_told_and_the_next_try_is_not_its_replay(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail_operation("compute.networks.insert", 403, "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally.", reason="quotaExceeded")
    with pytest.raises(Quota, match=r"metric NETWORKS, limit 5\.0 globally"):
        compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    assert compute.ensure_resource(google, compute.NETWORK, network(mark), mark).created


def test_made_deleted_and_made_again_within_the_life_of_a_request_id(google: Google, mark: Mark) -> None:
    for _ in range(2):
        assert compute.ensure_resource(google, compute.NETWORK, network(mark), mark).created
        assert compute.delete_resource(google, compute.NETWORK, "net", mark.run)
    assert not compute.delete_resource(google, compute.NETWORK, "net", mark.run)


def test_quota_and_permission_at_the_request(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.capacity.set_quota("demo", "NETWORKS", 1)
    with pytest.raises(Quota, match="NETWORKS"):
        compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    fakes.fail("compute.networks.get", 403, "Required 'compute.networks.get' permission for 'projects/demo'")
    with pytest.raises(Permission, match=r"compute\.networks\.get"):
        compute.ensure_resource(google, compute.NETWORK, network(mark), mark)


def test_subnets_are_made_side_by_side(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    begun = fakes.clock.now()
    compute.ensure_subnetworks(google, [subnet(mark, 0)], mark, region=REGION)
    one = fakes.clock.now() - begun
    begun = fakes.clock.now()
    made = compute.ensure_subnetworks(google, [subnet(mark, number) for number in range(1, 9)], mark, region=REGION)
    assert [item.created for item in made] == [True] * 8
    assert fakes.clock.now() - begun <= 2 * one
    assert inserts(fakes) == ["net", *(f"sub-{number}" for number in range(9))]


def test_a_network_in_use_is_named_at_the_deadline(google: Google, mark: Mark) -> None:
    compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    compute.ensure_subnetworks(google, [subnet(mark, 0)], mark, region=REGION)
    with pytest.raises((WaitedTooLong, InUse)) as caught:
        compute.delete_resource(google, compute.NETWORK, "net", mark.run)
    assert "sub-0" in str(caught.value)


def test_a_zone_without_roce_lists_those_that_have(google: Google) -> None:
    assert capacity.check_roce_profile(google, ZONE) == f"{ZONE}-vpc-roce"
    with pytest.raises(NotFound, match="us-central1-f has no RoCE") as caught:
        capacity.check_roce_profile(google, "us-central1-f")
    assert ZONE in caught.value.choices


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, ""),
        ({"reservation": "projects/demo/reservations/gpus/reservationBlocks/b"}, ""),
        ({"reservation": "other"}, "no such reservation there"),
        ({"zone": "us-central1-a"}, "no such reservation there"),
        ({"machine": "a4-highgpu-8g"}, "found a3-ultragpu-8g"),
        ({"nodes": 5}, "4 free of 4"),
        ({"reservation": "open"}, "one that any instance consumes"),
    ],
)
def test_a_reservation_must_fit(fakes: GoogleFakes, google: Google, change: dict[str, Any], wanted: str) -> None:
    fakes.capacity.reserve("demo", "gpus", ZONE, "a3-ultragpu-8g", 4)
    fakes.capacity.reserve("demo", "open", ZONE, "a3-ultragpu-8g", 4, specific=False)
    asked = {"reservation": "gpus", "zone": ZONE, "machine": "a3-ultragpu-8g", "nodes": 4, **change}
    if not wanted:
        capacity.check_reservation(google, **asked)
        return
    with pytest.raises(ReservationMismatch, match=wanted):
        capacity.check_reservation(google, **asked)


def test_the_subnet_of_an_adopted_network(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    assert compute.subnet_of(google, "default", REGION) == ""
    compute.ensure_resource(google, compute.NETWORK, network(mark), mark)
    with pytest.raises(NotFound, match="no subnet"):
        compute.subnet_of(google, "net", REGION)
    compute.ensure_subnetworks(google, [subnet(mark, 0)], mark, region=REGION)
    assert compute.subnet_of(google, "net", REGION) == "sub-0"
    compute.ensure_subnetworks(google, [subnet(mark, 1)], mark, region=REGION)
    with pytest.raises(Conflict, match="several subnets") as caught:
        compute.subnet_of(google, "net", REGION)
    assert caught.value.found == "sub-0, sub-1"
    with pytest.raises(NotFound, match="there is no network nowhere"):
        compute.subnet_of(google, "nowhere", REGION)
