"""Google's real clients, pointed at the fakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from google.auth.credentials import AnonymousCredentials, Credentials
from google.cloud import compute_v1, container_v1
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerRestTransport

from tests.fakes.google import GoogleFakes

PROJECT = "demo"
REGION = "us-central1"
ZONE = "us-central1-b"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
CLUSTER = f"{PARENT}/clusters/c"


class Clients:
    """Clients by service, and short hands for what most tests make first."""

    def __init__(self, fakes: GoogleFakes, credentials: Credentials | None = None) -> None:
        self.fakes = fakes
        self.credentials = credentials or AnonymousCredentials()
        transport = ClusterManagerRestTransport(host=fakes.endpoints["container"], credentials=self.credentials, url_scheme="http")
        self.gke = container_v1.ClusterManagerClient(transport=transport)

    def compute(self, kind: type[Any]) -> Any:
        """A client of google-cloud-compute, such as `compute_v1.NetworksClient`."""
        return kind(credentials=self.credentials, client_options={"api_endpoint": self.fakes.endpoints["compute"]})

    def rest(self, kind: type[Any]) -> Any:
        """A REST client of another google-cloud library, such as `lustre_v1.LustreClient`."""
        service = next(
            name for name in ("lustre", "secretmanager", "serviceusage", "cloudresourcemanager") if name in kind.DEFAULT_ENDPOINT
        )
        return kind(credentials=self.credentials, transport="rest", client_options={"api_endpoint": self.fakes.endpoints[service]})

    def discovered(self, service: str, version: str) -> Any:
        """A client of googleapiclient from its bundled discovery document."""
        import httplib2
        from googleapiclient.discovery import build

        return build(
            service, version, http=httplib2.Http(), cache_discovery=False, client_options={"api_endpoint": self.fakes.endpoints[service]}
        )

    def storage(self) -> Any:
        """A google-cloud-storage client."""
        from google.cloud import storage

        return storage.Client(
            project=PROJECT, credentials=self.credentials, client_options={"api_endpoint": self.fakes.endpoints["storage"]}
        )

    def done(self, operation: Any) -> Any:
        """Poll an operation of Compute or GKE in virtual time until it is done; returns it as it then is."""
        for _ in range(1000):
            self.fakes.clock.sleep(5)
            operation = self._poll(operation)
            if str(operation.status).rpartition(".")[2] in ("DONE", "3", str(int(compute_v1.Operation.Status.DONE))):
                return operation
        raise AssertionError(f"{operation} is not done")

    def _poll(self, operation: Any) -> Any:
        if hasattr(operation, "location"):
            return self.gke.get_operation(name=f"projects/{PROJECT}/locations/{operation.location}/operations/{operation.name}")
        name = operation.name
        if getattr(operation, "zone", ""):
            return self.compute(compute_v1.ZoneOperationsClient).get(
                project=PROJECT, zone=operation.zone.rpartition("/")[2], operation=name
            )
        if getattr(operation, "region", ""):
            region = operation.region.rpartition("/")[2]
            return self.compute(compute_v1.RegionOperationsClient).get(project=PROJECT, region=region, operation=name)
        return self.compute(compute_v1.GlobalOperationsClient).get(project=PROJECT, operation=name)

    def network(self, name: str = "net", **more: Any) -> None:
        body = compute_v1.Network(name=name, auto_create_subnetworks=False, mtu=8896, **more)
        self.done(self.compute(compute_v1.NetworksClient).insert(project=PROJECT, network_resource=body))

    def subnet(self, name: str = "sub", network: str = "net", cidr: str = "192.168.0.0/24", region: str = REGION) -> None:
        body = compute_v1.Subnetwork(name=name, network=f"global/networks/{network}", ip_cidr_range=cidr)
        self.done(self.compute(compute_v1.SubnetworksClient).insert(project=PROJECT, region=region, subnetwork_resource=body))

    def rdma(self, count: int = 8) -> None:
        """The RoCE network of ZONE with its subnetworks."""
        self.network("rdma", network_profile=f"global/networkProfiles/{ZONE}-vpc-roce")
        for index in range(count):
            self.subnet(f"rdma-{index}", "rdma", f"192.168.{index + 1}.0/24")

    def cluster(self, name: str = "c", **more: Any) -> container_v1.Operation:
        """Begin a Standard cluster on network `net`."""
        body = {
            "name": name,
            "network": "net",
            "subnetwork": "sub",
            "node_pools": [{"name": "cpu", "initial_node_count": 1, "locations": [f"{REGION}-a"]}],
            "ip_allocation_policy": {"use_ip_aliases": True},
            "network_config": {"datapath_provider": "ADVANCED_DATAPATH", "enable_multi_networking": True},
            "workload_identity_config": {"workload_pool": f"{PROJECT}.svc.id.goog"},
            **more,
        }
        return self.gke.create_cluster({"parent": PARENT, "cluster": body})

    def ready(self, **more: Any) -> None:
        """Network, subnetwork and a running cluster `c`."""
        self.network()
        self.subnet()
        self.done(self.cluster(**more))

    def pool(self, name: str = "gpu", cluster: str = CLUSTER, **more: Any) -> container_v1.Operation:
        """Begin an empty A4 pool that autoscales up to four nodes."""
        config = {
            "machine_type": "a4-highgpu-8g",
            "accelerators": [{"accelerator_type": "nvidia-b200", "accelerator_count": 8}],
            **more.pop("config", {}),
        }
        body = {
            "name": name,
            "locations": [ZONE],
            "config": config,
            "autoscaling": {"enabled": True, "total_max_node_count": 4, "location_policy": "ANY"},
            **more,
        }
        return self.gke.create_node_pool({"parent": cluster, "node_pool": body})


def until(fakes: GoogleFakes, what: Callable[[], bool], seconds: float = 3600.0) -> float:
    """Let virtual time pass until `what`; returns how much did."""
    start = fakes.clock.now()
    for _ in itertools.count():
        if what():
            return fakes.clock.now() - start
        assert fakes.clock.now() - start < seconds, f"not within {seconds} virtual seconds"
        fakes.clock.sleep(5)
    raise AssertionError
