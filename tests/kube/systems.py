"""The systems of the tutorials, as parameters and facts that render takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.kube.facts import Facts, Lustre, Operator, node_networks
from tuneline.kube.render import Manifest, render, render_job

RUN_ID = "tlk2mpqd7xya"
IMAGE = "docker.io/verlai/verl:vllm011.latest@sha256:" + "7f" * 32
ARM_IMAGE = "docker.io/verlai/verl:vllm023.aarch64.dev1@sha256:" + "a4" * 32
NEMO_IMAGE = "nvcr.io/nvidia/nemo-rl:v0.5.0@sha256:" + "5e" * 32
GKE = {
    "infra_platform": "gke",
    "infra_project": "my-project",
    "infra_region": "us-central1",
    "infra_zone": "us-central1-b",
    "output_root": "gs://my-store",
}
OPERATOR = Operator("ray-operator", {"app.kubernetes.io/name": "kuberay-operator"})
NETWORKS = node_networks(
    "tuneline",
    ("tuneline-gvnic", "tuneline-gvnic"),
    "tuneline-rdma",
    tuple(f"tuneline-rdma-{number}" for number in range(8)),
)


@dataclass(frozen=True)
class System:
    """One system: what render is called with."""

    parameters: dict[str, Any]
    facts: Facts

    @property
    def spec(self) -> RunSpec:
        return RunSpec.build({**GKE, **self.parameters})

    def manifests(self, run_id: str = RUN_ID) -> list[Manifest]:
        """Everything that is applied for one run, the job of the first attempt last."""
        job = render_job(
            self.spec,
            run_id,
            self.facts,
            job_name=f"{run_id}-a1",
            argv=("python", "-m", "verl.trainer.main_ppo", "data.train_files=/data/datasets/9a/train.parquet"),
            env={"HF_HUB_OFFLINE": "1"},
            deadline_seconds=432_000,
        )
        return [*render(self.spec, run_id, self.facts), job]


SYSTEMS = {
    "autopilot": System(
        {
            "infra_cluster_kind": "autopilot",
            "gpu_machine": "a4-highgpu-8g",
            "gpu_reservation": "projects/owner/reservations/b200/reservationBlocks/block-7",
        },
        Facts(
            image=IMAGE, ray_version="2.48.0", bucket="my-store", resource_api="resource.k8s.io/v1", operator=OPERATOR, expires="2026-12-08"
        ),
    ),
    "standard": System(
        {"infra_cluster_kind": "standard", "gpu_machine": "a3-ultragpu-8g", "gpu_provisioning": "spot"},
        Facts(
            image=IMAGE,
            ray_version="2.48.0",
            bucket="my-store",
            prefix="team/tuning",
            cpu_pool="tuneline-cpu",
            gpu_pool=RUN_ID,
            networks=NETWORKS,
            operator=OPERATOR,
        ),
    ),
    "a4x": System(
        {"infra_cluster_kind": "a4x", "gpu_machine": "a4x-highgpu-4g", "gpu_nodes": 4, "gpu_reservation": "gb200"},
        Facts(
            image=ARM_IMAGE, ray_version="2.49.0", bucket="my-store", gpu_pool=RUN_ID, resource_api="resource.k8s.io/v1", operator=OPERATOR
        ),
    ),
    "lustre": System(
        {"infra_cluster_kind": "standard", "infra_filesystem": "lustre", "gpu_machine": "a4-highgpu-8g", "gpu_reservation": "b200"},
        Facts(
            image=NEMO_IMAGE,
            ray_version="2.49.2",
            lustre=Lustre("10.126.0.2", "lustrefs", "my-project/us-central1-b/tuneline"),
            cpu_pool="tuneline-cpu",
            gpu_pool=RUN_ID,
            networks=NETWORKS,
            operator=OPERATOR,
        ),
    ),
    "cpu": System(
        {"infra_cluster_kind": "standard", "gpu_machine": ""},
        Facts(image=IMAGE, ray_version="2.60.0", bucket="my-store", cpu_pool="tuneline-cpu", operator=OPERATOR),
    ),
}
