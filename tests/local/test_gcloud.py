"""The real gcloud drives the fakes: the tutorials' own commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.google import GoogleFakes

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

BASES = {"compute": "compute/v1/", "storage": "storage/v1/"}
Gcloud = Callable[[str], Any]


@pytest.fixture
def fakes() -> Iterator[GoogleFakes]:
    with GoogleFakes() as running:
        yield running


@pytest.fixture
def gcloud(fakes: GoogleFakes, tmp_path: Path) -> Gcloud:
    """Runs a gcloud command against the fakes; returns its JSON. A failure raises CalledProcessError with its stderr."""
    environment = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_AUTH_ACCESS_TOKEN": "token",
        "CLOUDSDK_CORE_PROJECT": "demo",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }
    for service, url in fakes.endpoints.items():
        environment[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"] = f"{url}/{BASES.get(service, '')}"

    def run(command: str) -> Any:
        done = subprocess.run(
            ["gcloud", *command.split(), "--format=json"], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return json.loads(done.stdout) if done.stdout.strip() else None

    return run


def test_networks_and_a_standard_cluster_by_the_tutorials_commands(fakes: GoogleFakes, gcloud: Gcloud) -> None:
    gcloud("compute networks create gv-net --subnet-mode=custom")
    gcloud("compute networks subnets create gv-sub --network=gv-net --region=us-central1 --range=192.168.0.0/24")
    gcloud("beta compute networks create rdma-net --network-profile=us-central1-b-vpc-roce --subnet-mode=custom")
    gcloud("compute networks subnets create rdma-0 --network=rdma-net --region=us-central1 --range=192.168.1.0/24")
    assert [item["name"] for item in gcloud("compute networks list")] == ["default", "gv-net", "rdma-net"]
    gcloud(
        "container clusters create c --location=us-central1 --enable-dataplane-v2 --workload-pool=demo.svc.id.goog --enable-ip-alias "
        "--enable-multi-networking --addons=RayOperator,GcsFuseCsiDriver --network=gv-net --subnetwork=gv-sub --num-nodes=1 --async"
    )
    assert gcloud("container clusters describe c --location=us-central1")["status"] == "PROVISIONING"
    fakes.clock.advance(700)
    cluster = gcloud("container clusters list")[0]
    assert (cluster["name"], cluster["status"]) == ("c", "RUNNING")
    assert cluster["addonsConfig"]["rayOperatorConfig"]["enabled"]
    assert cluster["currentNodeCount"] == 3, "a regional cluster without node locations has its nodes three times"
    gcloud(
        "container node-pools create gpu --cluster=c --location=us-central1 --node-locations=us-central1-b --machine-type=a4-highgpu-8g "
        "--accelerator=type=nvidia-b200,count=8,gpu-driver-version=DEFAULT --enable-autoscaling --total-min-nodes=0 --total-max-nodes=2 "
        "--num-nodes=1 --spot --additional-node-network=network=rdma-net,subnetwork=rdma-0 --async"
    )
    fakes.clock.advance(500)
    assert len([item for item in gcloud("compute instances list") if item["name"].startswith("gke-c-gpu-")]) == 1
    with pytest.raises(subprocess.CalledProcessError) as caught:
        gcloud("compute networks delete rdma-net")
    assert "is already being used by" in caught.value.stderr


def test_an_autopilot_cluster_by_the_tutorials_command(fakes: GoogleFakes, gcloud: Gcloud) -> None:
    fakes.compute.plant("subnetworks", "us-central1", {"name": "default", "network": "default", "ipCidrRange": "10.128.0.0/20"}, "demo")
    gcloud("container clusters create-auto c --location=us-central1 --release-channel=rapid --enable-ray-operator --async")
    fakes.clock.advance(700)
    cluster = gcloud("container clusters describe c --location=us-central1")
    assert cluster["autopilot"]["enabled"]
    assert cluster["releaseChannel"]["channel"] == "RAPID"
    assert cluster["status"] == "RUNNING"
