"""GPU machine types and what the tutorials and Google's documentation say of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Facts of one machine type.

    Attributes:
        accelerator: GKE's name of the GPU.
        gpus: GPUs of a node.
        rdma_nics: RDMA interfaces of a node.
        cpu_arch: amd64 | arm64, which images must have.
        tuner: Base name of the gIB tuner file of this machine, '' where the installer has none.
        fabric_gb_s: What the network between nodes carries each way, GB/s: the most that a large all-reduce can reach.
    """

    name: str
    accelerator: str
    gpus: int
    rdma_nics: int
    cpu_arch: str
    vcpus: int
    memory_gib: int
    gpu_memory_gib: int
    tuner: str
    fabric_gb_s: int


#: vCPUs and memory: Google's machine type pages; GPU memory: NVIDIA's data sheets (H200 141 GB, B200 180 GB, GB200 186 GB).
#: Networks: 8 x 400 Gbps of RoCE by Google's pages; on A4X NVLink 5 over the whole domain, 900 GB/s each way a GPU by NVIDIA's data sheet
#: (its RoCE has 200).
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("a3-ultragpu-8g", "nvidia-h200-141gb", 8, 8, "amd64", 224, 2952, 141, "a3u", 400),
        Machine("a4-highgpu-8g", "nvidia-b200", 8, 8, "amd64", 224, 3968, 180, "a4", 400),
        Machine("a4x-highgpu-4g", "nvidia-gb200", 4, 4, "arm64", 140, 884, 186, "", 900),
    )
}
