"""What GKE refuses in a cluster or a node pool."""

from __future__ import annotations

import re

from tests.fakes.capacity import GPUS, METRICS, Capacity, Shape
from tests.fakes.compute.links import REGION, ZONE, region_of, resolve
from tests.fakes.compute.rules import Rules
from tests.fakes.errors import ApiError
from tests.fakes.world import Body, Entry, World, leaf

DRANET_LABEL = "cloud.google.com/gke-networking-dra-driver"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_RESERVATION = re.compile(r"(?:projects/([^/]+)/reservations/)?([^/]+)(?:/reservationBlocks/([^/]+)(?:/reservationSubBlocks/[^/]+)?)?")


def bad(message: str) -> ApiError:
    """GKE's 400 INVALID_ARGUMENT."""
    return ApiError(400, message, reason="badRequest")


class GkeRules:
    """Checks of clusters and pools before their operations begin."""

    def __init__(self, world: World, rules: Rules, capacity: Capacity) -> None:
        self.world = world
        self.compute = rules
        self.capacity = capacity

    def check_cluster(self, project: str, location: str, body: Body) -> tuple[str, str]:
        """Returns the paths of network and subnetwork.

        Raises:
            ApiError: 400 or 404.
        """
        if not _NAME.fullmatch(body.get("name", "")):
            raise bad(
                f'Invalid value for field "cluster.name": "{body.get("name", "")}". Must be 1 to 40 lower case letters, digits, dashes.'
            )
        if not (REGION.fullmatch(location) or ZONE.fullmatch(location)):
            raise bad(f'Location "{location}" does not exist.')
        for zone in body.get("locations", ()):
            if region_of(zone) != location and zone != location:
                raise bad(f'Zone "{zone}" is not in location "{location}".')
        autopilot = body.get("autopilot", {}).get("enabled", False)
        # gcloud's create-auto sends a default-pool, which Autopilot takes and shapes as it likes.
        if autopilot and any(pool.get("name") != "default-pool" for pool in body.get("nodePools", ())):
            raise bad("Autopilot clusters do not support user-specified node pools.")
        if not autopilot and not body.get("nodePools") and not body.get("initialNodeCount"):
            raise bad("Cluster.initial_node_count must be greater than zero.")
        if body.get("nodePools") and body.get("initialNodeCount"):
            raise bad("Cluster.initial_node_count and Cluster.node_pools must not both be set.")
        if not autopilot:
            self._check_standard(project, body)
        return self._networks(project, location, body)

    def _check_standard(self, project: str, body: Body) -> None:
        network = body.get("networkConfig", {})
        dataplane = network.get("datapathProvider") == "ADVANCED_DATAPATH"
        if dataplane and not body.get("ipAllocationPolicy", {}).get("useIpAliases"):
            raise bad("Dataplane V2 requires IP aliases: set ip_allocation_policy.use_ip_aliases.")
        if network.get("enableMultiNetworking") and not dataplane:
            raise bad("Multi-networking requires Dataplane V2: set network_config.datapath_provider to ADVANCED_DATAPATH.")
        pool = body.get("workloadIdentityConfig", {}).get("workloadPool", "")
        if pool and pool != f"{project}.svc.id.goog":
            raise bad(f'Invalid workload pool "{pool}": must be "{project}.svc.id.goog".')
        if body.get("addonsConfig", {}).get("gcsFuseCsiDriverConfig", {}).get("enabled") and not pool:
            raise bad("Workload Identity must be enabled to use the Cloud Storage FUSE CSI driver.")

    def _networks(self, project: str, location: str, body: Body) -> tuple[str, str]:
        region = region_of(location) if ZONE.fullmatch(location) else location
        network = resolve(self.world, project, body.get("network", "default"), "global/networks")
        entry = self.world.get(network)
        if entry is None or entry.busy:
            raise bad(f'Network "{leaf(network)}" does not exist in project "{project}".')
        if self.compute.roce_zone(network):
            raise bad(f'Network "{leaf(network)}" has a network profile and cannot be the network of a cluster.')
        if "subnetwork" in body:
            subnet = resolve(self.world, project, body["subnetwork"], f"regions/{region}/subnetworks")
        else:
            subnet = f"projects/{project}/regions/{region}/subnetworks/{leaf(network)}"
        found = self.world.get(subnet)
        automatic = entry.body.get("autoCreateSubnetworks") and "subnetwork" not in body
        if not automatic and (found is None or found.busy or not found.body["network"].endswith(network)):
            raise ApiError(404, f'Not found: project "{project}" does not have a subnetwork named "{leaf(subnet)}" in region "{region}".')
        return network, subnet

    def check_pool(self, cluster: Entry, path: str, body: Body, zones: list[str]) -> Shape:
        """The shape of the pool's nodes (its zone is the first of `zones`).

        Raises:
            ApiError: 400, 403, 404 or 429.
        """
        config, project = body.get("config", {}), path.split("/")[1]
        if not _NAME.fullmatch(body.get("name", "")):
            raise bad(
                f'Invalid value for field "node_pool.name": "{body.get("name", "")}". Must be 1 to 40 lower case letters, digits, dashes.'
            )
        location = path.split("/")[3]
        if any(zone != location and region_of(zone) != location for zone in zones):
            raise bad(f'Node locations {zones} are not in the location of the cluster, "{location}".')
        self._check_provisioning(body, config)
        self.check_autoscaling(body)
        self._check_networks(cluster, project, body, zones)
        placement = body.get("placementPolicy", {})
        if placement.get("type") == "COMPACT" and len(zones) != 1:
            raise bad("Compact placement requires exactly one zone.")
        if "policyName" in placement:
            policy = f"projects/{project}/regions/{region_of(zones[0])}/resourcePolicies/{placement['policyName']}"
            if self.world.get(policy) is None:
                raise ApiError(404, f'Not found: resource policy "{placement["policyName"]}" in region "{region_of(zones[0])}".')
        shape = self._shape(project, config, zones[0])
        if shape.reservation:
            self._check_reservation(shape, body, config)
        else:
            self.capacity.check_quota(self.world.project(project), shape, body.get("initialNodeCount", 0) * len(zones))
        return shape

    def _check_provisioning(self, body: Body, config: Body) -> None:
        spot, flex = config.get("spot") or config.get("preemptible"), config.get("flexStart")
        queued = body.get("queuedProvisioning", {}).get("enabled")
        affinity = config.get("reservationAffinity", {}).get("consumeReservationType", "UNSPECIFIED")
        if spot and flex:
            raise bad("Spot and flex-start cannot be used together.")
        if (spot or flex or queued) and affinity not in ("NO_RESERVATION", "UNSPECIFIED"):
            raise bad("Reservation affinity must be NO_RESERVATION for Spot, flex-start and queued provisioning.")
        if flex and affinity != "NO_RESERVATION":
            raise bad("Flex-start requires reservation affinity NO_RESERVATION.")
        if flex and (body.get("management", {}).get("autoRepair") or body.get("initialNodeCount")):
            raise bad("Flex-start requires auto-repair to be disabled and an initial node count of zero.")
        if queued and body.get("autoscaling", {}).get("totalMinNodeCount", 0):
            raise bad("Queued provisioning requires a minimum of zero nodes.")
        if "maxRunDuration" in config and not (flex or queued):
            raise bad("max_run_duration requires flex-start or queued provisioning.")

    def check_autoscaling(self, body: Body) -> None:
        scaling = body.get("autoscaling", {})
        totals = {"totalMinNodeCount", "totalMaxNodeCount"} & set(scaling)
        if totals and {"minNodeCount", "maxNodeCount"} & set(scaling):
            raise bad("Total node limits and per-zone node limits cannot be used together.")
        if scaling.get("enabled") and not scaling.get("totalMaxNodeCount") and not scaling.get("maxNodeCount"):
            raise bad("Autoscaling requires a maximum node count of at least one.")

    def _check_networks(self, cluster: Entry, project: str, body: Body, zones: list[str]) -> None:
        own, common = body.get("networkConfig", {}), cluster.body.get("networkConfig", {})
        extra, profile = own.get("additionalNodeNetworkConfigs", ()), own.get("acceleratorNetworkProfile", "")
        if profile:
            if profile != "auto":
                raise bad(f'Invalid accelerator network profile "{profile}": must be "auto".')
            if extra:
                raise bad("accelerator_network_profile cannot be used with additional_node_network_configs.")
            if common.get("datapathProvider") != "ADVANCED_DATAPATH":
                raise bad("accelerator_network_profile requires Dataplane V2.")
            if body.get("config", {}).get("labels", {}).get(DRANET_LABEL) != "true":
                raise bad(f'accelerator_network_profile requires the node label "{DRANET_LABEL}=true".')
            for zone in zones:
                if zone not in self.compute.roce_zones:
                    raise bad(f'Zone "{zone}" has no RoCE network profile for accelerator_network_profile.')
        if extra and not common.get("enableMultiNetworking"):
            raise bad("additional_node_network_configs require a cluster with multi-networking.")
        for item in extra:
            network = resolve(self.world, project, item.get("network", ""), "global/networks")
            subnet = resolve(self.world, project, item.get("subnetwork", ""), f"regions/{region_of(zones[0])}/subnetworks")
            entry = self.world.get(subnet)
            if self.world.get(network) is None or entry is None or not entry.body["network"].endswith(network):
                raise ApiError(404, f'Not found: network "{leaf(network)}" with subnetwork "{leaf(subnet)}".')
            zone = self.compute.roce_zone(network)
            if zone and zones != [zone]:
                raise bad(f'Network "{leaf(network)}" has a network profile of zone "{zone}" and cannot be used in {zones}.')

    def _shape(self, project: str, config: Body, zone: str) -> Shape:
        machine = config.get("machineType", "e2-medium")
        wanted = [(item.get("acceleratorType", ""), int(item.get("acceleratorCount", 0))) for item in config.get("accelerators", ())]
        has = [GPUS[machine]] if machine in GPUS else []
        if wanted != has:
            raise bad(f'Accelerators {wanted} do not match machine type "{machine}", which has {has}.')
        affinity = config.get("reservationAffinity", {})
        gpu, count = has[0] if has else ("", 0)
        prefix = "PREEMPTIBLE_" if config.get("spot") or config.get("flexStart") else ""
        metric = prefix + METRICS[gpu] if gpu else ""
        if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
            return Shape(machine, zone, count, metric)
        values = affinity.get("values", [])
        if affinity.get("key") != RESERVATION_KEY or len(values) != 1:
            raise bad(f'A specific reservation needs key "{RESERVATION_KEY}" and exactly one value.')
        found = _RESERVATION.fullmatch(values[0])
        if not found:
            raise bad(f'Invalid reservation "{values[0]}".')
        owner, name, block = found.groups()
        path = f"projects/{owner or project}/zones/{zone}/reservations/{name}"
        return Shape(machine, zone, count, "", path, f"{path}/reservationBlocks/{block}" if block else "")

    def _check_reservation(self, shape: Shape, body: Body, config: Body) -> None:
        value, name = config["reservationAffinity"]["values"][0], body["name"]
        entry = self.world.get(shape.reservation)
        if entry is None or (shape.block and self.world.get(shape.block) is None):
            raise ApiError(404, f'Google Compute Engine: reservation "{value}" not found for node pool "{name}" at zone "{shape.zone}".')
        if not entry.body["specificReservationRequired"]:
            raise bad(f'Reservation "{value}" cannot be targeted: specificReservationRequired is not set.')
        has = entry.body["specificReservation"]["instanceProperties"]["machineType"]
        if has != shape.machine:
            raise bad(f'Reservation "{value}" is of machine type "{has}", node pool "{name}" asks for "{shape.machine}".')
        wanted, free = body.get("initialNodeCount", 0), self.capacity.free(entry)
        if wanted > free:
            raise ApiError(
                429,
                f'Reservation does not have enough resources for the request: specific reservation "{value}" is insufficient for node pool '
                f'"{name}" at zone "{shape.zone}": required {wanted} and short of {wanted - free} VM count '
                f"of machine type {shape.machine}.",
            )
