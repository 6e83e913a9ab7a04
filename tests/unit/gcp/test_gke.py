"""Clusters and node pools, against the fake that Google's client drives."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import container_v1

from tests.fakes.gke import groups
from tests.fakes.google import GoogleFakes
from tests.unit.gcp.conftest import OTHER
from tuneline.core.clock import Deadline
from tuneline.gcp import gke
from tuneline.gcp.calls import wait
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import Conflict, NotReady, Permission, Quota, Refused, ReservationMismatch, Stockout
from tuneline.gcp.ownership import Mark

REGION, ZONE = "us-central1", "us-central1-b"
MACHINE = "a3-ultragpu-8g"


def cluster(mark: Mark, **fields: Any) -> container_v1.Cluster:
    body: dict[str, Any] = {
        "name": "c",
        "resource_labels": mark.labels,
        "network": "projects/demo/global/networks/default",
        "ip_allocation_policy": {"use_ip_aliases": True},
        "network_config": {"datapath_provider": "ADVANCED_DATAPATH"},
        "workload_identity_config": {"workload_pool": "demo.svc.id.goog"},
        "node_pools": [{"name": "default-pool", "initial_node_count": 1, "config": {"resource_labels": mark.labels}}],
    }
    return container_v1.Cluster(**{**body, **fields})


def pool(mark: Mark, nodes: int = 0, name: str = "gpu", **config: Any) -> container_v1.NodePool:
    return container_v1.NodePool(
        name=name,
        initial_node_count=nodes,
        locations=[ZONE],
        config={
            "machine_type": MACHINE,
            "resource_labels": mark.labels,
            "accelerators": [{"accelerator_type": "nvidia-h200-141gb", "accelerator_count": 8}],
            **config,
        },
    )


def scaled(mark: Mark) -> container_v1.NodePool:
    """A pool of 0 to 2 nodes."""
    body = pool(mark)
    body.autoscaling = container_v1.NodePoolAutoscaling(enabled=True, total_max_node_count=2)
    return body


@pytest.fixture
def there(google: Google, mark: Mark) -> str:
    """The name of a cluster that this run made."""
    return gke.ensure_cluster(google, REGION, cluster(mark), mark).name


def started(fakes: GoogleFakes, kind: str) -> int:
    """Operations of a type that began."""
    return sum(item.body["operationType"] == kind for item in fakes.container.operations.all.values())


def test_a_cluster_is_made_once_and_found_again(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    for _ in range(2):
        found = gke.ensure_cluster(google, REGION, cluster(mark), mark)
        assert found.created
        assert found.resource.status.name == "RUNNING"
    assert started(fakes, "CREATE_CLUSTER") == 1


def test_another_runs_is_adopted_or_a_conflict(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    gke.ensure_cluster(google, REGION, cluster(OTHER), OTHER)
    assert not gke.ensure_cluster(google, REGION, cluster(mark), mark).created
    lustre = {"addons_config": {"lustre_csi_driver_config": {"enabled": True}}}
    with pytest.raises(Conflict, match=r"lustre_csi_driver_config\.enabled: asked True, found None"):
        gke.ensure_cluster(google, REGION, cluster(mark, **lustre), mark)
    assert started(fakes, "CREATE_CLUSTER") == 1


@pytest.mark.parametrize("lost", [None, 503])
def test_an_answer_that_is_lost_is_no_second_cluster(fakes: GoogleFakes, google: Google, mark: Mark, lost: int | None) -> None:
    fakes.fail("container.projects.locations.clusters.create", lost, after=True)
    assert gke.ensure_cluster(google, REGION, cluster(mark), mark).created
    assert started(fakes, "CREATE_CLUSTER") == 1
    assert fakes.unmet() == []


def test_a_creation_in_flight_is_resumed(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    parent = f"projects/demo/locations/{REGION}"
    google.clusters.create_cluster(parent=parent, cluster=cluster(mark))
    fakes.clock.advance(100)
    assert gke.ensure_cluster(google, REGION, cluster(mark), mark).created
    assert started(fakes, "CREATE_CLUSTER") == 1


def test_a_deletion_in_flight_is_waited_for(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    google.clusters.delete_cluster(name=f"projects/demo/locations/{REGION}/clusters/{there}")
    assert gke.ensure_cluster(google, REGION, cluster(mark), mark).created
    assert (started(fakes, "CREATE_CLUSTER"), started(fakes, "DELETE_CLUSTER")) == (2, 1)


def test_a_cluster_that_fails_for_want_of_machines_goes_again(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail_operation("container.projects.locations.clusters.create", 429, "[GCE_STOCKOUT]: zone has none.", rpc="RESOURCE_EXHAUSTED")
    with pytest.raises(Stockout):
        gke.ensure_cluster(google, REGION, cluster(mark), mark)
    assert gke.get_cluster(google, REGION, "c") is None
    assert gke.ensure_cluster(google, REGION, cluster(mark), mark).created


def test_an_operation_that_failed_is_not_a_success(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail_operation("container.projects.locations.clusters.create", 400, "Bad subnet.", rpc="INVALID_ARGUMENT")
    with pytest.raises(Refused, match="Bad subnet"):
        gke.ensure_cluster(google, REGION, cluster(mark), mark)


def test_a_cluster_too_old_is_a_conflict(google: Google, mark: Mark) -> None:
    gke.ensure_cluster(google, REGION, cluster(mark), mark, least_version="1.34.1-gke.1829001")
    with pytest.raises(Conflict, match=r"older than 99\.1"):
        gke.ensure_cluster(google, REGION, cluster(mark), mark, least_version="99.1")


def test_versions_compare_by_number() -> None:
    assert gke.version("1.34.1-gke.1829001") < gke.version("1.34.1-gke.10000000") < gke.version("1.35.0-gke.1")


def test_permission_is_told_at_once(fakes: GoogleFakes, google: Google, mark: Mark) -> None:
    fakes.fail(
        "container.projects.locations.clusters.create", 403, 'Required "container.clusters.create" permission(s) for "projects/demo".'
    )
    begun = fakes.clock.now()
    with pytest.raises(Permission):
        gke.ensure_cluster(google, REGION, cluster(mark), mark)
    assert fakes.clock.now() - begun < 60


def test_a_busy_cluster_is_waited_for(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    fakes.container.busy(there, 600)
    assert gke.ensure_pool(google, REGION, there, pool(mark), mark).created


def test_a_cluster_busy_beyond_the_deadline_is_not_ready(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    fakes.container.busy(there, 10_000)
    with pytest.raises(NotReady, match="incompatible operation"):
        gke.ensure_pool(google, REGION, there, pool(mark), mark)


def test_the_token_that_ends_after_an_hour_is_renewed(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    fakes.tokens.required = True
    fakes.container.busy(there, 3000)
    credentials = google.credentials("cluster")
    before = credentials.refreshes
    fakes.tokens.lifetime = 600
    fakes.tokens.expire()
    assert gke.ensure_pool(google, REGION, there, pool(mark), mark).created
    assert credentials.refreshes > before


def test_a_stockout_surfaces_within_three_minutes_and_the_pool_goes(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    fakes.capacity.set_stock(MACHINE, ZONE, 1)
    begun = fakes.clock.now()
    with pytest.raises(Stockout, match="does not have enough resources") as caught:
        gke.ensure_pool(google, REGION, there, pool(mark, nodes=2), mark)
    discarded = next(call.at for call in fakes.calls if call.method.endswith("nodePools.delete"))
    assert discarded - begun <= 180
    assert "infra_zone" in caught.value.next_move
    assert gke.get_pool(google, REGION, there, "gpu") is None


def test_a_refusal_that_passes_is_no_stockout(
    fakes: GoogleFakes, google: Google, mark: Mark, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.capacity.set_stock(MACHINE, ZONE, 0)
    fakes.world.after(60, lambda: fakes.capacity.stock.clear())
    monkeypatch.setattr(groups, "RETRY", 40.0)
    found = gke.ensure_pool(google, REGION, there, pool(mark, nodes=1), mark)
    assert found.created
    assert len(fakes.container.nodes(there, "gpu")) == 1


def test_a_scaled_pool_is_watched_too(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    gke.ensure_pool(google, REGION, there, scaled(mark), mark)
    watch = gke.PoolWatch(google, lambda: gke.get_pool(google, REGION, there, "gpu"))
    fakes.capacity.set_stock(MACHINE, ZONE, 0)
    fakes.container.scale(there, "gpu", 2)
    begun = fakes.clock.now()
    with pytest.raises(Stockout):
        wait(google, "wait for workers", lambda: 0, bool, Deadline.after(fakes.clock, 3600), poll=10, watch=watch.check)
    assert fakes.clock.now() - begun <= 180


def test_quota_names_metric_limit_and_usage(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    fakes.capacity.set_quota("demo", "NVIDIA_H200_GPUS", 8, REGION)
    with pytest.raises(Quota, match=r"metric NVIDIA_H200_GPUS, limit 8\.0, usage 0"):
        gke.ensure_pool(google, REGION, there, pool(mark, nodes=2), mark)


def test_quota_of_a_scaled_pool_is_told_at_once(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    gke.ensure_pool(google, REGION, there, scaled(mark), mark)
    fakes.capacity.set_quota("demo", "NVIDIA_H200_GPUS", 8, REGION)
    watch = gke.PoolWatch(google, lambda: gke.get_pool(google, REGION, there, "gpu"))
    fakes.container.scale(there, "gpu", 2)
    fakes.clock.sleep(60)
    with pytest.raises(Quota, match="NVIDIA_H200_GPUS"):
        watch.check()


def test_a_reservation_that_is_not_there(google: Google, mark: Mark, there: str) -> None:
    affinity = {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["r"]}
    with pytest.raises(ReservationMismatch, match='reservation "r" not found'):
        gke.ensure_pool(google, REGION, there, pool(mark, reservation_affinity=affinity), mark)


def test_another_runs_pool_is_a_conflict(google: Google, mark: Mark, there: str) -> None:
    gke.ensure_pool(google, REGION, there, pool(OTHER), OTHER)
    with pytest.raises(Conflict, match=OTHER.run):
        gke.ensure_pool(google, REGION, there, pool(mark), mark)


def test_a_pool_goes_with_its_groups_even_if_the_answer_is_lost(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    gke.ensure_pool(google, REGION, there, pool(mark, nodes=2), mark)
    fakes.fail("container.projects.locations.clusters.nodePools.delete", None, after=True)
    assert gke.delete_pool(google, REGION, there, "gpu")
    assert [path for path in fakes.leftovers() if "/instance" in path and "gpu" in path] == []
    assert not gke.delete_pool(google, REGION, there, "gpu")
    assert started(fakes, "DELETE_NODE_POOL") == 1


def test_a_pool_is_emptied_and_stays_empty(fakes: GoogleFakes, google: Google, mark: Mark, there: str) -> None:
    gke.ensure_pool(google, REGION, there, scaled(mark), mark)
    fakes.container.scale(there, "gpu", 2)
    fakes.clock.sleep(300)
    assert len(fakes.container.nodes(there, "gpu")) == 2
    gke.resize_pool(google, REGION, there, "gpu", 0)
    fakes.clock.sleep(300)
    assert fakes.container.nodes(there, "gpu") == []
    found = gke.get_pool(google, REGION, there, "gpu")
    assert found is not None
    assert not found.autoscaling.enabled
