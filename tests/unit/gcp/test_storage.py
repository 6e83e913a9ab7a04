"""Buckets and their bindings, against the fake that Google's client drives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.google import GoogleFakes
from tests.unit.gcp.conftest import OTHER
from tuneline.gcp import storage
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import Conflict, GoogleError
from tuneline.gcp.ownership import Mark

NUMBER = "123456789012"
ROLE = "roles/storage.objectUser"
MEMBER = storage.principal(NUMBER, "demo", "tuneline", "tuneline")
GOOD: dict[str, Any] = {
    "location": "US-CENTRAL1",
    "hierarchicalNamespace": {"enabled": True},
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
}


def ensure(google: Google, mark: Mark) -> bool:
    return storage.ensure_bucket(google, "mine-1", "us-central1", mark, number=NUMBER).created


def test_made_once_with_hierarchy_and_uniform_access(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    assert [ensure(google, mark), ensure(google, mark)] == [True, True]
    body = fakes.world.resources["b/mine-1"].body
    assert body["hierarchicalNamespace"] == {"enabled": True}
    assert body["labels"] == mark.labels
    assert not storage.ensure_bucket(google, "mine-1", "us-central1", OTHER, number=NUMBER).created


def test_a_storm_and_a_lost_answer(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail("storage.buckets.insert", 503, times=2)
    fakes.fail("storage.buckets.insert", None, after=True)
    assert ensure(google, mark)
    assert fakes.unmet() == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"location": "EU"}, "location: asked US-CENTRAL1, found EU"),
        ({"hierarchicalNamespace": {"enabled": False}}, "hierarchical namespace: asked True, found False"),
        ({"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}}}, "uniform bucket-level access: asked True, found False"),
        ({"labels": {"managed-by": "terraform"}}, "managed-by: asked tuneline, found terraform"),
    ],
)
def test_one_that_does_not_fit_is_a_conflict(fakes: GoogleFakes, google: Google, mark: Mark, fields: dict[str, Any], wanted: str) -> None:
    fakes.storage.plant("mine-1", **{**GOOD, **fields})
    with pytest.raises(Conflict, match=wanted):
        ensure(google, mark)


def test_one_that_fits_is_adopted(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.storage.plant("mine-1", **GOOD)
    assert not ensure(google, mark)


def test_a_name_taken_by_another_project(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.add_project("strangers", "999")
    fakes.storage.plant("mine-1", "strangers", foreign=True, **GOOD)
    with pytest.raises(Conflict, match="may be another project's"):
        ensure(google, mark)
    fakes.world.resources["b/mine-1"].extra["foreign"] = False
    with pytest.raises(Conflict, match=f"project number: asked {NUMBER}, found 999"):
        ensure(google, mark)


def test_a_binding_is_added_and_removed_once(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.projects["demo"].identity_pool = True
    ensure(google, mark)
    assert [storage.ensure_binding(google, "mine-1", ROLE, MEMBER) for _ in range(2)] == [True, False]
    assert fakes.storage.bindings("mine-1") == [(ROLE, MEMBER)]
    assert [storage.delete_binding(google, "mine-1", ROLE, MEMBER) for _ in range(2)] == [True, False]
    assert fakes.storage.bindings("mine-1") == []
    assert not storage.delete_binding(google, "nosuch-bucket", ROLE, MEMBER)


def test_a_policy_that_others_change_meanwhile_is_read_again(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.projects["demo"].identity_pool = True
    ensure(google, mark)
    fakes.fail("storage.buckets.setIamPolicy", 412, "At least one of the pre-conditions you specified did not hold.", times=3)
    assert storage.ensure_binding(google, "mine-1", ROLE, MEMBER)
    assert fakes.unmet() == []


def test_no_binding_before_the_first_cluster(google: Google, mark: Mark) -> None:
    ensure(google, mark)
    with pytest.raises(GoogleError, match="Identity Pool does not exist"):
        storage.ensure_binding(google, "mine-1", ROLE, MEMBER)
