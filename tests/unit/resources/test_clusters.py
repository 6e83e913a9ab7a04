"""What is asked of Google for clusters and pools: the rules behind the golden files."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import container_v1

from tests.gke_specs import PROVISIONINGS, RUN_ID, SYSTEMS, VALID, spec_of
from tuneline.resources import clusters, networks
from tuneline.resources.inventory import Names, mark_of


def parts(system: str, how: str = "reservation", **changes: Any) -> tuple[Any, Names, Any]:
    spec = spec_of(system, how, **changes)
    return spec, Names.of(spec, RUN_ID), mark_of(spec, RUN_ID, 0)


def pool_of(system: str, how: str) -> container_v1.NodePool:
    return clusters.build_gpu_pool(*parts(system, how))


POOLS = [(system, how) for system, how in VALID if system != "autopilot"]


@pytest.mark.parametrize(("system", "how"), POOLS)
def test_only_a_reservation_consumes_reservations(system: str, how: str) -> None:
    config = pool_of(system, how).config
    affinity = config.reservation_affinity
    assert affinity.consume_reservation_type.name == ("SPECIFIC_RESERVATION" if how == "reservation" else "NO_RESERVATION")
    assert (config.spot, config.flex_start) == (how == "spot", how == "flex-start")
    assert list(affinity.values) == ([PROVISIONINGS[how]["gpu_reservation"]] if how == "reservation" else [])


@pytest.mark.parametrize(("system", "how"), POOLS)
def test_flex_start_is_not_repaired_and_bounded(system: str, how: str) -> None:
    pool = pool_of(system, how)
    assert pool.management.auto_repair is (how != "flex-start")
    assert bool(pool.config.max_run_duration) is (how == "flex-start")


@pytest.mark.parametrize("system", ["standard", "lustre"])
def test_standard_pools_begin_empty_and_have_nine_nics_in_order(system: str) -> None:
    pool = pool_of(system, "reservation")
    assert pool.initial_node_count == 0
    assert (pool.autoscaling.total_min_node_count, pool.autoscaling.total_max_node_count) == (0, 2)
    assert pool.autoscaling.location_policy.name == "ANY"
    nics = [nic.subnetwork for nic in pool.network_config.additional_node_network_configs]
    assert nics == ["tuneline-gvnic-sub", *(f"tuneline-rdma-sub-{number}" for number in range(8))]
    assert pool.network_config.accelerator_network_profile == ""


def test_a4x_is_placed_as_a_whole_on_drane_networks() -> None:
    pool = pool_of("a4x", "reservation")
    assert pool.initial_node_count == 4
    assert not pool.autoscaling.enabled
    assert pool.placement_policy.policy_name == "tuneline-1x72"
    assert pool.network_config.accelerator_network_profile == "auto"
    assert not pool.network_config.additional_node_network_configs
    assert pool.config.labels[clusters.DRANET_LABEL] == "true"


@pytest.mark.parametrize("system", SYSTEMS)
def test_cluster_kinds(system: str) -> None:
    spec, names, mark = parts(system)
    cluster = clusters.build_cluster(spec, names, mark, subnetwork="")
    addons = cluster.addons_config
    assert cluster.autopilot.enabled is (system == "autopilot")
    assert bool(cluster.node_pools) is (system != "autopilot")
    assert addons.ray_operator_config.enabled is (system != "a4x")
    assert addons.ray_operator_config.ray_cluster_logging_config.enabled is (system != "a4x")
    assert addons.gcs_fuse_csi_driver_config.enabled
    assert addons.lustre_csi_driver_config.enabled is (system == "lustre")
    assert not addons.lustre_csi_driver_config.enable_legacy_lustre_port
    assert cluster.control_plane_endpoints_config.dns_endpoint_config.allow_external_traffic
    assert cluster.network_config.enable_multi_networking is (system in ("standard", "lustre"))


@pytest.mark.parametrize(("zones", "wanted"), [("", []), ("us-central1-a, us-central1-c", ["us-central1-a", "us-central1-c"])])
def test_the_cpu_pool_has_zones_of_its_own(zones: str, wanted: list[str]) -> None:
    spec, _, mark = parts("standard", infra_cpu_zones=zones)
    assert list(clusters.build_cpu_pool(spec, mark).locations) == wanted


def test_nobody_needs_a_rdma_network_without_gpus_or_with_dranet() -> None:
    for system, changes in (("autopilot", {}), ("a4x", {}), ("standard", {"gpu_machine": "", "gpu_reservation": ""})):
        spec, names, mark = parts(system, **changes)
        made = networks.build_networks(spec, names, mark)
        assert (made.networks, made.subnetworks, made.firewalls) == ([], [], [])


def test_the_roce_profile_is_the_zones_and_its_network_has_no_firewall() -> None:
    made = networks.build_networks(*parts("standard"))
    roce = next(network for network in made.networks if network.network_profile)
    assert roce.network_profile.endswith("/us-central1-b-vpc-roce")
    assert all(not rule.network.endswith(roce.name) for rule in made.firewalls)
    assert {network.mtu for network in made.networks} == {8896}
