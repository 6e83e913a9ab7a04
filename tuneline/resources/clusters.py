"""Clusters of three kinds and the run's GPU pool, as the tutorials make them, with their faults corrected."""

from __future__ import annotations

from typing import Any

from tuneline.config.machines import MACHINES
from tuneline.config.spec import RunSpec
from tuneline.gcp import capacity, compute, gke
from tuneline.gcp.clients import Google
from tuneline.gcp.compute import Ensured
from tuneline.gcp.ownership import Mark
from tuneline.resources.inventory import Inventory, Names
from tuneline.resources.networks import network_path, uses_rdma_networks

#: Only this label lets GKE's managed DRANET claim the NICs of a node.
DRANET_LABEL = "cloud.google.com/gke-networking-dra-driver"
RUN_LABEL = "tuneline-run"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: The tutorials' own name, which their head pods select.
CPU_POOL = "default-pool"
CPU_NODES = 5
#: The head asks for 12 CPUs and 32 GB; NeMo RL's for more memory. E2 is what zones run out of last.
CPU_MACHINE = "e2-standard-16"
CPU_MACHINE_LUSTRE = "n2-highmem-16"
DISK_GB = 200
#: DeviceClasses of managed DRANET are installed from here on.
DRANET_VERSION = "1.34.1-gke.1829001"
#: From here on Lustre clients use port 988 without the legacy flag.
LUSTRE_VERSION = "1.33.2-gke.4780000"
RAY_VERSION = "1.30.0-gke.1747000"


def least_version(spec: RunSpec) -> str:
    """The oldest control plane that can do what the run needs."""
    if spec.infra_cluster_kind in ("autopilot", "a4x"):
        return DRANET_VERSION
    return LUSTRE_VERSION if spec.infra_filesystem == "lustre" else RAY_VERSION


def build_cluster(spec: RunSpec, names: Names, mark: Mark, *, subnetwork: str) -> Any:
    """container_v1.Cluster.

    Args:
        subnetwork: The nodes' subnet in the cluster's network; '' in an auto-mode network.
    """
    from google.cloud import container_v1 as gke_v1

    subnet = f"projects/{spec.infra_project}/regions/{spec.infra_region}/subnetworks/{subnetwork}" if subnetwork else ""
    cluster = gke_v1.Cluster(
        name=names.cluster,
        description=mark.description,
        resource_labels=mark.labels,
        network=network_path(spec, names.network),
        subnetwork=subnet,
        ip_allocation_policy=gke_v1.IPAllocationPolicy(use_ip_aliases=True),
        release_channel=gke_v1.ReleaseChannel(channel=spec.infra_release_channel.upper()),
        addons_config=_addons(spec),
        control_plane_endpoints_config=gke_v1.ControlPlaneEndpointsConfig(
            dns_endpoint_config=gke_v1.ControlPlaneEndpointsConfig.DNSEndpointConfig(allow_external_traffic=True)
        ),
    )
    if spec.infra_cluster_kind == "autopilot":
        cluster.autopilot = gke_v1.Autopilot(enabled=True)
        return cluster
    cluster.network_config = gke_v1.NetworkConfig(
        datapath_provider=gke_v1.DatapathProvider.ADVANCED_DATAPATH,
        # Immutable, and A4X's DRANET needs none; Standard's extra NICs do.
        enable_multi_networking=spec.infra_cluster_kind == "standard",
    )
    cluster.workload_identity_config = gke_v1.WorkloadIdentityConfig(workload_pool=f"{spec.infra_project}.svc.id.goog")
    cluster.node_pools = [build_cpu_pool(spec, mark)]
    return cluster


def _addons(spec: RunSpec) -> Any:
    from google.cloud import container_v1 as gke_v1

    addons = gke_v1.AddonsConfig(gcs_fuse_csi_driver_config=gke_v1.GcsFuseCsiDriverConfig(enabled=True))
    if spec.infra_cluster_kind != "a4x":  # There the KubeRay operator comes by Helm, as the tutorial has it; two would fight.
        addons.ray_operator_config = gke_v1.RayOperatorConfig(
            enabled=True,
            ray_cluster_logging_config=gke_v1.RayClusterLoggingConfig(enabled=True),
            ray_cluster_monitoring_config=gke_v1.RayClusterMonitoringConfig(enabled=True),
        )
    if spec.infra_filesystem == "lustre":
        addons.lustre_csi_driver_config = gke_v1.LustreCsiDriverConfig(enabled=True)
    return addons


def build_cpu_pool(spec: RunSpec, mark: Mark) -> Any:
    """container_v1.NodePool of head and operators, in zones of its own: a full GPU zone must not keep the cluster from coming up."""
    from google.cloud import container_v1 as gke_v1

    return gke_v1.NodePool(
        name=CPU_POOL,
        initial_node_count=1,
        locations=[zone.strip() for zone in spec.infra_cpu_zones.split(",") if zone.strip()],
        autoscaling=gke_v1.NodePoolAutoscaling(
            enabled=True,
            total_min_node_count=1,
            total_max_node_count=CPU_NODES,
            location_policy=gke_v1.NodePoolAutoscaling.LocationPolicy.ANY,
        ),
        management=gke_v1.NodeManagement(auto_repair=True, auto_upgrade=True),
        config=gke_v1.NodeConfig(
            machine_type=CPU_MACHINE_LUSTRE if spec.infra_filesystem == "lustre" else CPU_MACHINE,
            oauth_scopes=SCOPES,
            resource_labels=mark.labels,
            workload_metadata_config=gke_v1.WorkloadMetadataConfig(mode=gke_v1.WorkloadMetadataConfig.Mode.GKE_METADATA),
        ),
    )


def build_policy(spec: RunSpec, names: Names, mark: Mark) -> Any:
    """compute_v1.ResourcePolicy that puts A4X nodes into one NVLink domain of 72 GPUs."""
    from google.cloud import compute_v1

    return compute_v1.ResourcePolicy(
        name=names.policy,
        description=mark.description,
        workload_policy=compute_v1.ResourcePolicyWorkloadPolicy(type_="HIGH_THROUGHPUT", accelerator_topology="1x72"),
    )


def build_gpu_pool(spec: RunSpec, names: Names, mark: Mark) -> Any:
    """container_v1.NodePool of the run's GPU nodes (Standard and A4X; Autopilot makes its own from the run's ComputeClass)."""
    from google.cloud import container_v1 as gke_v1

    machine, dranet = MACHINES[spec.gpu_machine], spec.infra_cluster_kind == "a4x"
    driver = gke_v1.GPUDriverInstallationConfig.GPUDriverVersion
    pool = gke_v1.NodePool(
        name=names.pool,
        locations=[spec.infra_zone],
        management=gke_v1.NodeManagement(auto_repair=spec.gpu_provisioning != "flex-start", auto_upgrade=True),
        config=gke_v1.NodeConfig(
            machine_type=machine.name,
            disk_type="hyperdisk-balanced",  # The only boot disk of A3 Ultra, A4 and A4X.
            disk_size_gb=DISK_GB,
            oauth_scopes=SCOPES,
            gvnic=gke_v1.VirtualNIC(enabled=True),
            resource_labels=mark.labels,
            labels={RUN_LABEL: mark.run, **({DRANET_LABEL: "true"} if dranet else {})},
            workload_metadata_config=gke_v1.WorkloadMetadataConfig(mode=gke_v1.WorkloadMetadataConfig.Mode.GKE_METADATA),
            accelerators=[
                gke_v1.AcceleratorConfig(
                    accelerator_type=machine.accelerator,
                    accelerator_count=machine.gpus,
                    gpu_driver_installation_config=gke_v1.GPUDriverInstallationConfig(
                        gpu_driver_version=driver.LATEST if dranet else driver.DEFAULT
                    ),
                )
            ],
        ),
    )
    _buy(pool, spec)
    if dranet:
        # A pool of a 1x72 policy is placed as a whole, and the autoscaler cannot foresee DRA devices of nodes to come: no autoscaling.
        pool.initial_node_count = spec.gpu_nodes
        pool.network_config = gke_v1.NodeNetworkConfig(accelerator_network_profile="auto")
        pool.placement_policy = gke_v1.NodePool.PlacementPolicy(policy_name=names.policy)
        return pool
    pool.autoscaling = gke_v1.NodePoolAutoscaling(
        enabled=True,
        total_max_node_count=spec.gpu_nodes,
        location_policy=gke_v1.NodePoolAutoscaling.LocationPolicy.ANY,
    )
    if uses_rdma_networks(spec):
        nics = [(names.gvnic, names.gvnic_subnetwork), *((names.roce, name) for name in names.roce_subnetworks[: machine.rdma_nics])]
        pool.network_config = gke_v1.NodeNetworkConfig(
            additional_node_network_configs=[
                gke_v1.AdditionalNodeNetworkConfig(network=network, subnetwork=subnetwork) for network, subnetwork in nics
            ]
        )
    return pool


def _buy(pool: Any, spec: RunSpec) -> None:
    """How the nodes are bought. Only a named reservation may be consumed; all else must not eat into anybody's."""
    from datetime import timedelta

    from google.cloud import container_v1 as gke_v1

    affinity = gke_v1.ReservationAffinity
    if spec.gpu_provisioning == "reservation":
        pool.config.reservation_affinity = affinity(
            consume_reservation_type=affinity.Type.SPECIFIC_RESERVATION,
            key="compute.googleapis.com/reservation-name",
            values=[spec.gpu_reservation],
        )
        # The reservation has no machine to spare: an upgrade takes a node away before it brings the new one.
        pool.upgrade_settings = gke_v1.NodePool.UpgradeSettings(max_unavailable=1)
        return
    pool.config.reservation_affinity = affinity(consume_reservation_type=affinity.Type.NO_RESERVATION)
    if spec.gpu_provisioning == "spot":
        pool.config.spot = True
    elif spec.gpu_provisioning == "flex-start":
        pool.config.flex_start = True
        pool.config.max_run_duration = timedelta(hours=spec.gpu_max_run_hours)


def ensure_cluster(google: Google, spec: RunSpec, names: Names, mark: Mark, inventory: Inventory, *, subnetwork: str) -> Ensured:
    """The cluster as asked, running; its id is recorded, for the networks that GKE leaves behind carry it.

    Raises:
        Conflict: A cluster of this name differs or is another's; names both values.
    """
    body = build_cluster(spec, names, mark, subnetwork=subnetwork)
    found = gke.ensure_cluster(google, spec.infra_region, body, mark, least_version=least_version(spec))
    inventory.note("cluster", names.cluster, place=spec.infra_region, created=found.created, id=str(found.resource.id))
    return found


def has_gpu_pool(spec: RunSpec) -> bool:
    """Whether the run has a GPU pool of its own."""
    return spec.gpu_machine != "" and spec.infra_cluster_kind != "autopilot"


def ensure_gpu_pool(google: Google, spec: RunSpec, names: Names, mark: Mark, inventory: Inventory) -> Ensured | None:
    """The run's GPU pool: empty and autoscaled on Standard, with its nodes on A4X; None on Autopilot.

    Raises:
        ReservationMismatch: Before anything is bought.
        Stockout: Within three minutes of the first refusal.
    """
    own = has_gpu_pool(spec)
    there = own and gke.get_pool(google, spec.infra_region, names.cluster, names.pool) is not None
    if spec.gpu_machine and spec.gpu_provisioning == "reservation" and not there:
        capacity.check_reservation(google, spec.gpu_reservation, spec.infra_zone, spec.gpu_machine, spec.gpu_nodes)
    if not own:
        return None
    if spec.infra_cluster_kind == "a4x":
        policy = compute.ensure_resource(google, compute.POLICY, build_policy(spec, names, mark), mark, place=spec.infra_region)
        inventory.note("policy", names.policy, place=spec.infra_region, created=policy.created)
    pool = gke.ensure_pool(google, spec.infra_region, names.cluster, build_gpu_pool(spec, names, mark), mark)
    inventory.note("pool", names.pool, place=spec.infra_region, created=pool.created)
    return pool


def watch_gpu_pool(google: Google, spec: RunSpec, names: Names) -> capacity.PoolWatch:
    """A watch whose `check()` raises when the pool's machines are refused: for whoever waits for the workers."""
    return capacity.PoolWatch(google, lambda: gke.get_pool(google, spec.infra_region, names.cluster, names.pool))
