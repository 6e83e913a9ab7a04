"""Rules of runs on GKE: each fault told with the choices, together with all the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gke_specs import PLACE, SYSTEMS, VALID, spec_of
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError

# System, changes, and what the message must hold.
INVALID: list[tuple[str, dict[str, Any], list[str]]] = [
    ("standard", {"infra_project": ""}, ["infra_project=''", "needs it"]),
    ("standard", {"infra_region": "", "infra_zone": ""}, ["infra_region=''", "infra_zone=''"]),
    ("standard", {"infra_zone": "us-central1"}, ["infra_zone='us-central1'", "is no zone"]),
    ("standard", {"infra_zone": "us-east1-b"}, ["is in us-east1, not in infra_region=us-central1"]),
    ("standard", {"infra_cpu_zones": "us-central1-a, europe-west1-b"}, ["infra_cpu_zones='europe-west1-b'", "is in europe-west1"]),
    ("standard", {"infra_name": "Tuneline"}, ["infra_name='Tuneline'", "start with a-z"]),
    ("standard", {"infra_name": "t" * 41}, ["at most 40"]),
    ("standard", {"infra_name": "tune-"}, ["not end with '-'"]),
    ("standard", {"infra_network": "a_b"}, ["infra_network='a_b'"]),
    ("standard", {"infra_namespace": "n" * 64}, ["infra_namespace", "at most 63"]),
    ("standard", {"infra_service_account": "a.b"}, ["infra_service_account='a.b'"]),
    ("standard", {"infra_account_network": "netadmin"}, ["infra_account_network='netadmin'", "e-mail"]),
    ("standard", {"gpu_machine": "a4x-highgpu-4g"}, ["infra_cluster_kind=standard", "choose infra_cluster_kind=a4x"]),
    ("a4x", {"gpu_machine": "a4-highgpu-8g"}, ["infra_cluster_kind=a4x", "choose gpu_machine=a4x-highgpu-4g"]),
    ("a4x", {"gpu_machine": ""}, ["choose gpu_machine=a4x-highgpu-4g"]),
    ("a4x", {"gpu_nodes": 19}, ["gpu_nodes=19", "choose 1 to 18"]),
    ("a4x", {"gpu_provisioning": "spot", "gpu_reservation": ""}, ["gpu_provisioning=spot", "only by reservation"]),
    ("standard", {"gpu_reservation": ""}, ["gpu_reservation=''", "spot, flex-start or on-demand"]),
    ("standard", {"gpu_provisioning": "spot"}, ["gpu_provisioning=spot uses none"]),
    ("standard", {"gpu_provisioning": "flex-start"}, ["gpu_provisioning=flex-start uses none"]),
    ("standard", {"gpu_provisioning": "on-demand"}, ["gpu_provisioning=on-demand uses none"]),
    ("standard", {"gpu_reservation": "my reservation"}, ["must be NAME or projects/P/reservations/NAME"]),
    ("standard", {"gpu_reservation": "acme/reservations/gpus"}, ["must be NAME or projects/P/reservations/NAME"]),
    ("standard", {"output_root": "/data"}, ["output_root='/data'", "gs://BUCKET"]),
    ("standard", {"output_root": ""}, ["output_root=''", "gs://BUCKET"]),
    ("standard", {"output_root": "gs://"}, ["gs://BUCKET"]),
    ("standard", {"output_root": "gs://goog-things"}, ["may not start with goog"]),
    ("lustre", {"infra_lustre_gib": 20000}, ["steps of 18000", "20000 = 1 x 18000 + 2000", "choose 18000 or 36000"]),
    ("lustre", {"infra_lustre_gib": 9000, "infra_lustre_throughput": 125}, ["choose 72000"]),
    (
        "lustre",
        {"infra_zone": "x", "infra_lustre_gib": 9001, "output_root": "", "gpu_reservation": ""},
        ["x", "9001", "output_root", "gpu_res"],
    ),
]


@pytest.mark.parametrize(("system", "changes", "wanted"), INVALID)
def test_invalid_sets_are_refused(system: str, changes: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(system, **changes)
    text = str(caught.value)
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize(("system", "how"), VALID)
def test_every_system_is_valid(system: str, how: str) -> None:
    assert spec_of(system, how).gpu_provisioning == how


@pytest.mark.parametrize(
    "changes",
    [
        {"infra_cpu_zones": ""},
        {"gpu_reservation": "gpus"},
        {"gpu_reservation": "gpus/reservationBlocks/b1"},
        {"gpu_reservation": "projects/p-1/reservations/gpus/reservationBlocks/b1/reservationSubBlocks/s1"},
        {"gpu_machine": "", "gpu_reservation": ""},
        {"output_root": "gs://acme-rl"},
        {"infra_lustre_gib": 20000},  # Not judged where there is no Lustre.
        {"infra_account_network": "net@acme-rl.iam.gserviceaccount.com"},
    ],
)
def test_valid_variants(changes: dict[str, Any]) -> None:
    assert spec_of("standard", **changes)


@pytest.mark.parametrize(("throughput", "capacity"), [(125, 72000), (250, 36000), (500, 54000), (1000, 9000), (1000, 27000)])
def test_lustre_steps(throughput: int, capacity: int) -> None:
    assert spec_of("lustre", infra_lustre_throughput=throughput, infra_lustre_gib=capacity)


def test_a_local_run_ignores_what_is_said_of_the_cloud() -> None:
    parameters = {**PLACE, **SYSTEMS["a4x"], "infra_platform": "local", "output_root": "/data", "infra_zone": "x", "gpu_machine": ""}
    assert RunSpec.build(parameters)


def test_a_local_store_is_a_folder() -> None:
    with pytest.raises(SpecError, match="1 parameter"):
        RunSpec.build({"output_root": "gs://bucket"})
