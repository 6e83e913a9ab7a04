"""What goes wrong in Google Cloud and in the cluster: a typed error that names cause and next move, or success after waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.google import GoogleFakes
from tests.gke.double import Double
from tests.gke.test_whole_runs import of_run
from tests.gke.world import BUCKET, PlayedClock, Run
from tuneline.core.errors import SlowNetwork, TunelineError
from tuneline.gcp.errors import Conflict, NotFound, Permission, Quota, ReservationMismatch, Stockout
from tuneline.kube.api import Api
from tuneline.kube.errors import ClusterUnreachable, WorkloadFailed

Setup = Callable[[GoogleFakes, Double], object]


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        setup: Brings it about, after every task before `task`.
        task: The one that meets it.
        error: What this raises, None where it succeeds.
        says: Texts in the message that a person sees.
        seconds: Longest virtual time until the error.
        unmade: What must not be there afterwards, as a part of its path.
    """

    setup: Setup
    task: str
    error: type[TunelineError] | None
    says: tuple[str, ...] = ()
    system: str = "standard"
    changes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 3600.0
    unmade: str = "-gpu"


ON_DEMAND = {"gpu_provisioning": "on-demand", "gpu_reservation": ""}
SPOT = {"gpu_provisioning": "spot", "gpu_reservation": ""}


def trouble(**fields: Any) -> Setup:
    def setup(_: GoogleFakes, double: Double) -> None:
        for name, value in fields.items():
            setattr(double.trouble, name, value)

    return setup


def expire_each_half_hour(fakes: GoogleFakes, _: Double) -> None:
    """Tokens end on Google's side although they say that they are good."""
    clock = fakes.clock
    assert isinstance(clock, PlayedClock)
    clock.players.append(fakes.tokens.expire)


def unreachable_for(fakes: GoogleFakes, seconds: float) -> None:
    """The API server of the next cluster answers nobody until so long after it has come up."""
    server, until = fakes.container.endpoint, fakes.clock.now() + 540 + seconds
    fakes.container.endpoint = fakes.container.dns_endpoint = "127.0.0.1:9"

    def open_up() -> None:
        for _, cluster in fakes.world.of_kind("locations/clusters"):
            if fakes.clock.now() >= until:
                cluster.body["endpoint"] = server

    assert isinstance(fakes.clock, PlayedClock)
    fakes.clock.players.append(open_up)


FAULTS = {
    "quota": Case(
        lambda fakes, _: fakes.capacity.set_quota("demo", "NVIDIA_H200_GPUS", 8, "us-central1"),
        "launch",
        Quota,
        ("NVIDIA_H200_GPUS", "limit 8.0 in region us-central1", "iam-admin/quotas"),
        changes=ON_DEMAND,
        seconds=400,
    ),
    "stockout": Case(
        lambda fakes, _: fakes.capacity.set_stock("a3-ultragpu-8g", "us-central1-b", 0),
        "launch",
        Stockout,
        ("does not have enough resources", "infra_zone"),
        changes=SPOT,
        seconds=400,
    ),
    "stockout of a block": Case(
        lambda fakes, _: fakes.capacity.set_stock("a3-ultragpu-8g", "us-central1-b", 1),
        "launch",
        Stockout,
        ("does not have enough resources",),
        changes=SPOT,
        seconds=600,
    ),
    "stockout on Autopilot": Case(
        trouble(
            unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            events=[("FailedScaleUp", "Node scale up in zones us-central1-b failed: GCE out of resources.")],
        ),
        "launch",
        Stockout,
        ("no such machine left", "gpu_provisioning"),
        system="autopilot",
        seconds=200,
        unmade="nap-",
    ),
    "permission": Case(
        lambda fakes, _: fakes.fail(
            "container.*.clusters.create", 403, "Required 'container.clusters.create' permission for 'projects/demo'.", times=None
        ),
        "cluster",
        Permission,
        ("container.clusters.create", "grant the account"),
        seconds=60,
    ),
    "reservation mismatch": Case(
        lambda fakes, _: fakes.capacity.reserve("demo", "other", "us-central1-b", "a4-highgpu-8g", 8),
        "launch",
        ReservationMismatch,
        ("asked gpu_machine=a3-ultragpu-8g", "found a4-highgpu-8g"),
        changes={"gpu_reservation": "other"},
        seconds=60,
    ),
    "zone without RoCE": Case(
        lambda fakes, _: None, "network", NotFound, ("us-central1-c", "us-central1-b"), changes={"infra_zone": "us-central1-c"}, seconds=60
    ),
    "name taken": Case(
        lambda fakes, _: fakes.compute.plant(
            "networks", "global", {"name": "tuneline-rdma-net", "description": '{"managed-by": "terraform"}'}, "demo"
        ),
        "network",
        Conflict,
        ("tuneline-rdma-net", "terraform", "infra_name"),
        seconds=200,
    ),
    "bucket taken": Case(
        lambda fakes, _: fakes.storage.plant(BUCKET, foreign=True), "storage", Conflict, (BUCKET, "output_root"), seconds=60
    ),
    "an endpoint that is not there yet": Case(lambda fakes, double: unreachable_for(fakes, 120), "cluster", None),
    "an endpoint that never answers": Case(
        lambda fakes, double: unreachable_for(fakes, 86400),
        "cluster",
        ClusterUnreachable,
        ("no endpoint of the cluster can be used", "container.clusters.connect"),
        # On a network of somebody else's only the uid that the cluster tells would prove its endpoint groups.
        changes={"infra_network": "tuneline-net"},
    ),
    "operation in progress": Case(lambda fakes, _: fakes.container.busy("tuneline", 900), "launch", None),
    "503 storm": Case(lambda fakes, _: fakes.fail("c*", 503, times=None, seconds=120), "cluster", None),
    "lost answers": Case(lambda fakes, _: fakes.fail("co*", None, times=5, after=True), "cluster", None),
    "tokens that end": Case(expire_each_half_hour, "launch", None),
    "unschedulable": Case(
        trouble(unschedulable="0/5 nodes are available: 5 Insufficient nvidia.com/gpu."),
        "launch",
        WorkloadFailed,
        ("not enough nvidia.com/gpu", "gpu_ready_minutes=15"),
        changes={"gpu_ready_minutes": 15},
        seconds=1200,
    ),
    "network without RDMA": Case(
        trouble(job='Job failed due to an application error\n{"all_reduce_gb_s": 3.1, "floor_gb_s": 200.0, "gpus": 16}'),
        "launch",
        SlowNetwork,
        ("200 GB/s or more on 2 x a3-ultragpu-8g", '"all_reduce_gb_s": 3.1', "gpu_nccl_check=false"),
        seconds=1200,
    ),
    "image not there": Case(
        trouble(image=True), "launch", WorkloadFailed, ("cannot pull example.test/ray", "ImagePullBackOff", "gpu_image"), seconds=600
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(fakes: GoogleFakes, double: Double, admin: Api, name: str) -> None:
    case = FAULTS[name]
    run = Run(fakes, double, case.system, **case.changes)
    tasks = Run.TASKS[: Run.TASKS.index(case.task)]
    for task in tasks:
        getattr(run, task)()
    case.setup(fakes, double)
    before = fakes.clock.now()
    if case.error is None:
        getattr(run, case.task)()
        assert fakes.unmet() == []
    else:
        with pytest.raises(case.error) as caught:
            getattr(run, case.task)()
        assert type(caught.value) is case.error
        assert [text for text in case.says if text not in str(caught.value)] == []
        # A release of what was bought belongs to the task, and takes its own time.
        told = [call.at for call in fakes.calls if call.method.endswith("nodePools.delete")] or [fakes.clock.now()]
        assert min(told) - before <= case.seconds
        assert [path for path in run.left() if case.unmade in path.rsplit("/", 1)[-1]] == []
        assert of_run(admin, run) == []
        if case.task != "storage":
            error = run.document(f"runs/{run.run_id}/errors/{TASK_NAMES[case.task]}.json")["error"]
            assert error == str(caught.value)
    run.cleanup("FAILED")
    assert run.left() == []


TASK_NAMES = {"launch": "launch_raycluster", "cluster": "provision_cluster", "network": "provision_network"}
