"""What GKE makes of the cluster that a caller asks for."""

from __future__ import annotations

import base64
from typing import Any

from tests.fakes.gke.groups import zones_of
from tests.fakes.gke.operations import numbered
from tests.fakes.world import Body, World, leaf

VERSION = "1.35.2-gke.1842000"
SERVER: Body = {
    "defaultClusterVersion": VERSION,
    "validMasterVersions": [VERSION],
    "validNodeVersions": [VERSION],
    "channels": [{"channel": name, "defaultVersion": VERSION, "validVersions": [VERSION]} for name in ("RAPID", "REGULAR", "STABLE")],
}


def fresh_cluster(
    world: World, path: str, body: Body, network: str, subnet: str, endpoint: str, dns_endpoint: str, ca_certificate: str
) -> Body:
    """A cluster that is being made of `body`, with what GKE fills in; an empty endpoint is invented."""
    _, project_id, _, location, _, name = path.split("/")
    project, id_ = world.project(project_id), world.id(path)
    region = location if location.count("-") == 1 else location.rpartition("-")[0]
    zones = zones_of(location, body.get("locations", []))
    if body.get("autopilot", {}).get("enabled"):
        body = autopilot(body, project.id)
    access = body.get("controlPlaneEndpointsConfig", {})
    dns = dns_endpoint or f"gke-{id_[:32]}-{project.number}.{region}.gke.goog"
    return {
        **body,
        "id": id_,
        "status": "PROVISIONING",
        "location": location,
        "zone": location,
        "locations": zones,
        "network": leaf(network),
        "subnetwork": leaf(subnet),
        "networkConfig": {**body.get("networkConfig", {}), "network": network, "subnetwork": subnet},
        "ipAllocationPolicy": {
            **body.get("ipAllocationPolicy", {}),
            "clusterSecondaryRangeName": f"gke-{name}-pods-{id_[:8]}",
            "clusterIpv4CidrBlock": "10.8.0.0/14",
        },
        "initialClusterVersion": body.get("initialClusterVersion", VERSION),
        "currentMasterVersion": VERSION,
        "currentNodeVersion": VERSION,
        "createTime": world.stamp(),
        "endpoint": endpoint or f"34.66.{int(id_[:2], 16)}.{int(id_[2:4], 16)}",
        "masterAuth": {"clusterCaCertificate": base64.b64encode(ca_certificate.encode()).decode()},
        "controlPlaneEndpointsConfig": {**access, "dnsEndpointConfig": {**access.get("dnsEndpointConfig", {}), "endpoint": dns}},
        "selfLink": numbered(path, project.number),
    }


def autopilot(body: Body, project: str) -> Body:
    """A cluster with what Autopilot turns on by itself."""
    addons: dict[str, Any] = {"gcsFuseCsiDriverConfig": {"enabled": True}, **body.get("addonsConfig", {})}
    return {
        **body,
        "addonsConfig": addons,
        "workloadIdentityConfig": {"workloadPool": f"{project}.svc.id.goog"},
        "networkConfig": {"datapathProvider": "ADVANCED_DATAPATH", **body.get("networkConfig", {})},
        "ipAllocationPolicy": {"useIpAliases": True, **body.get("ipAllocationPolicy", {})},
        "releaseChannel": body.get("releaseChannel", {"channel": "REGULAR"}),
    }
