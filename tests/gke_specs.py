"""Parameters of the four systems on GKE, with every provisioning that is valid for each."""

from __future__ import annotations

from typing import Any

from tuneline.config.spec import RunSpec

PLACE: dict[str, Any] = {
    "infra_platform": "gke",
    "infra_project": "acme-rl",
    "infra_region": "us-central1",
    "infra_zone": "us-central1-b",
    "infra_cpu_zones": "us-central1-a,us-central1-c",
    "output_root": "gs://acme-rl-tuneline/grpo",
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "autopilot": {"infra_cluster_kind": "autopilot", "gpu_machine": "a4-highgpu-8g"},
    "standard": {"infra_cluster_kind": "standard", "gpu_machine": "a3-ultragpu-8g"},
    "a4x": {"infra_cluster_kind": "a4x", "gpu_machine": "a4x-highgpu-4g", "gpu_nodes": 4},
    "lustre": {
        "infra_cluster_kind": "standard",
        "gpu_machine": "a4-highgpu-8g",
        "infra_filesystem": "lustre",
        "infra_network": "tuneline-net",
    },
}
PROVISIONINGS: dict[str, dict[str, Any]] = {
    "reservation": {
        "gpu_provisioning": "reservation",
        "gpu_reservation": "projects/acme-capacity/reservations/gpus/reservationBlocks/gpus-block-0001",
    },
    "spot": {"gpu_provisioning": "spot"},
    "flex-start": {"gpu_provisioning": "flex-start", "gpu_max_run_hours": 72},
    "on-demand": {"gpu_provisioning": "on-demand"},
}
#: Google gives A4X by reservation only.
VALID = [(system, how) for system in SYSTEMS for how in PROVISIONINGS if system != "a4x" or how == "reservation"]
RUN_ID = "tlgoldenruna"


def spec_of(system: str, how: str = "reservation", **changes: Any) -> RunSpec:
    return RunSpec.build({**PLACE, **SYSTEMS[system], **PROVISIONINGS[how], **changes})
