"""How much of its machine each pod asks for."""

from __future__ import annotations

from dataclasses import dataclass

from tuneline.config.machines import Machine


@dataclass(frozen=True)
class Size:
    """Requests and limits of one container.

    Attributes:
        cpu: vCPUs.
        memory, ephemeral, shm: GiB; shm is a part of memory.
    """

    cpu: int
    memory: int
    ephemeral: int
    shm: int = 0

    def quantities(self) -> dict[str, str]:
        """As Kubernetes writes them."""
        return {"cpu": str(self.cpu), "memory": f"{self.memory}Gi", "ephemeral": f"{self.ephemeral}Gi", "shm": f"{self.shm}Gi"}


#: Ray's head: the object directory, the dashboard, the job's driver. It fits 16 vCPUs and 64 GiB.
HEAD = Size(cpu=12, memory=32, ephemeral=20)
#: A worker without a GPU.
CPU_WORKER = Size(cpu=4, memory=16, ephemeral=20, shm=4)

#: vCPUs of a node for the kubelet, GKE's daemon sets and the storage sidecar.
_SYSTEM_CPU = 8
#: Part of a node's memory that a worker may have: GKE keeps 2-3 %, page cache and the storage sidecar want the rest.
_MEMORY_SHARE = 0.92
#: Autopilot keeps more for itself: the tutorial's 180 of 224 vCPUs, and 2,000 of 2,952 GiB.
_AUTOPILOT_CPU_SHARE = 0.80
_AUTOPILOT_MEMORY_SHARE = 0.67
#: Ray's object store takes up to 200 GB of /dev/shm; NCCL and PyTorch the rest.
_SHM = 250


def worker_size(machine: Machine, cluster_kind: str) -> Size:
    """A worker that has a whole node of `machine` to itself; on a4x the node of one worker also takes the head."""
    if cluster_kind == "autopilot":
        cpu, memory = int(machine.vcpus * _AUTOPILOT_CPU_SHARE), int(machine.memory_gib * _AUTOPILOT_MEMORY_SHARE)
    else:
        cpu, memory = machine.vcpus - _SYSTEM_CPU, int(machine.memory_gib * _MEMORY_SHARE)
    if cluster_kind == "a4x":
        cpu, memory = cpu - HEAD.cpu, memory - HEAD.memory
    return Size(cpu, memory, ephemeral=125 * machine.gpus, shm=min(_SHM, memory // 3))
