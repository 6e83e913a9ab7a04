"""What only the running project knows and manifests need: addresses, names, versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeNetwork:
    """One further interface of a GPU node.

    Attributes:
        name: Kubernetes' name of it.
        vpc, subnet: VPC network and subnet that the node pool attaches.
        mode: NetDevice (gVNIC) | RDMA.
    """

    name: str
    vpc: str
    subnet: str
    mode: str


def node_networks(prefix: str, gvnic: tuple[str, str], rdma_vpc: str, rdma_subnets: tuple[str, ...]) -> tuple[NodeNetwork, ...]:
    """The gVNIC network and one RDMA network a subnet, in the order in which the node pool attaches them.

    Args:
        prefix: Begin of their Kubernetes names.
        gvnic: VPC network and subnet of the gVNIC interface.
        rdma_vpc: VPC network with the RoCE profile.
        rdma_subnets: Its subnets, one for each RDMA interface.
    """
    rdma = (NodeNetwork(f"{prefix}-rdma-{number}", rdma_vpc, subnet, "RDMA") for number, subnet in enumerate(rdma_subnets))
    return (NodeNetwork(f"{prefix}-gvnic", *gvnic, "NetDevice"), *rdma)


@dataclass(frozen=True)
class Lustre:
    """A Managed Lustre instance.

    Attributes:
        ip: Of its management service, the part of mount_point before `@`.
        filesystem: The part of mount_point behind `/`.
        volume_handle: project/zone/name.
    """

    ip: str
    filesystem: str
    volume_handle: str


@dataclass(frozen=True)
class Operator:
    """Where the KubeRay operator's connections come from: pods with these labels in this namespace."""

    namespace: str = "kuberay-operator"
    labels: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "kuberay-operator"})


@dataclass(frozen=True)
class Facts:
    """What render needs beside the RunSpec.

    Attributes:
        image: Image of Ray's head and workers, by digest.
        ray_version: What `ray --version` says in it.
        bucket: Bucket of the store, without gs://; '' on Lustre.
        prefix: Folder of the store in the bucket, without slashes at the ends.
        lustre: The file system where /data is Lustre.
        resource_api: The version of resource.k8s.io that the server prefers, '' where it has none.
        cpu_pool: Node pool of the head ('' on Autopilot).
        gpu_pool: Node pool of the run's workers ('' on Autopilot).
        networks: Further interfaces of GPU nodes (Standard only).
        operator: Where the operator is, so that the network policy lets it in.
        gib_image: Image with Google's NCCL plugin, '' for the pinned one of the machine's architecture.
        expires: Value of the label tuneline-expires, '' for none.
    """

    image: str
    ray_version: str
    bucket: str = ""
    prefix: str = ""
    lustre: Lustre | None = None
    resource_api: str = ""
    cpu_pool: str = ""
    gpu_pool: str = ""
    networks: tuple[NodeNetwork, ...] = ()
    operator: Operator = field(default_factory=Operator)
    gib_image: str = ""
    expires: str = ""
