"""From empty to ready to empty: each system's tasks in the order of the graph."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.fakes.google import GoogleFakes
from tests.gke.double import KINDS, Double
from tests.gke.world import BUCKET, Run
from tuneline.gcp.errors import NotFound
from tuneline.kube.api import Api
from tuneline.kube.objects import RUN_LABEL, list_
from tuneline.tasks.cleanup import errors_of

SYSTEMS = ("standard", "autopilot", "a4x", "lustre")
NODES = {"standard": 2, "autopilot": 2, "a4x": 4, "lustre": 2}
GPUS = {"standard": 8, "autopilot": 8, "a4x": 4, "lustre": 8}


def of_run(admin: Api, run: Run) -> list[str]:
    """Everything of one run in the cluster."""
    labels = {RUN_LABEL: run.run_id}
    return [f"{kind} {item['metadata']['name']}" for version, kind in KINDS for item in list_(admin, version, kind, labels=labels)]


def notes_of(run: Run, task: str) -> dict[str, Any]:
    told = run.document(f"runs/{run.run_id}/tasks/{task}.json")
    assert told["state"] == "COMPLETE"
    notes: dict[str, Any] = told["notes"]
    return notes


@pytest.mark.parametrize("system", SYSTEMS)
def test_from_empty_to_ready_to_empty(fakes: GoogleFakes, double: Double, admin: Api, system: str) -> None:
    run = Run(fakes, double, system)
    run.until("launch")
    assert run.document(f"runs/{run.run_id}/raycluster.json")["name"] == run.run_id
    figure = {"standard": 200, "autopilot": 200, "a4x": 450, "lustre": 200}[system]
    told = f"all-reduce over {NODES[system] * GPUS[system]} GPUs: at least {figure} GB/s"
    assert notes_of(run, "launch_raycluster")["network"] == told
    nodes = list_(admin, "v1", "Node", labels={RUN_LABEL: run.run_id})
    assert len(nodes) == NODES[system]
    pods = list_(admin, "v1", "Pod", labels={RUN_LABEL: run.run_id})
    assert len(pods) == 1 + NODES[system]
    role, member = fakes.storage.bindings(BUCKET)[0]
    assert (role, member.rsplit("/", 2)[-2:]) == ("roles/storage.objectUser", ["sa", "tuneline"])

    fakes.clock.advance(3600)
    run.release()
    assert of_run(admin, run) == []
    assert not [path for path in run.left() if "nodePools" in path and "default-pool" not in path and "nap-" not in path]
    held = re.fullmatch(r".* gone; (\d+) GPU-minutes held, 0 used, (\d+) idle", notes_of(run, "release_gpus")["done"])
    assert held
    assert held[1] == held[2]
    assert 60 <= int(held[1]) / (NODES[system] * GPUS[system]) < 90

    run.cleanup()
    assert run.left() == []
    assert fakes.storage.bindings(BUCKET) == []
    assert [entry.kind for entry in run.inventory.entries if entry.created] == ["bucket"]
    assert run.document(f"runs/{run.run_id}/errors/cleanup.json") is None


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_task_again_makes_nothing_again(fakes: GoogleFakes, double: Double, admin: Api, system: str) -> None:
    run = Run(fakes, double, system)
    run.until("launch")
    before, uids = fakes.leftovers(), [pod["metadata"]["uid"] for pod in list_(admin, "v1", "Pod")]
    made = len([call for call in fakes.written() if call.method.endswith((".insert", ".create"))])
    run.until("launch")
    assert fakes.leftovers() == before
    assert [pod["metadata"]["uid"] for pod in list_(admin, "v1", "Pod")] == uids
    again = [call for call in fakes.written() if call.method.endswith((".insert", ".create")) and not call.method.startswith("storage.")]
    assert len(again) == len([call for call in again if call.status == 200]) <= made
    attempts = {
        task: run.document(f"runs/{run.run_id}/tasks/{task}.json")["attempt"] for task in ("provision_network", "launch_raycluster")
    }
    assert attempts == {"provision_network": 2, "launch_raycluster": 2}
    for task in ("release", "release", "cleanup", "cleanup"):
        getattr(run, task)()
    assert run.left() == []


def test_gpus_go_and_the_rest_stays_by_default(fakes: GoogleFakes, double: Double, admin: Api) -> None:
    run = Run(fakes, double, "standard", ops_cleanup_policy="gpus")
    run.until("cluster")
    before = run.left()
    run.launch()
    run.cleanup("FAILED")
    assert run.left() == before
    assert of_run(admin, run) == []
    second = Run(fakes, double, "standard")
    second.until("cleanup")
    assert run.left() == before, "the first run's cluster is not the second's to remove"


def test_none_leaves_everything(fakes: GoogleFakes, double: Double) -> None:
    run = Run(fakes, double, "standard", ops_cleanup_policy="none")
    run.until("launch")
    before = run.left()
    assert "ops_cleanup_policy=none" in run.cleanup()
    assert run.left() == before


def test_a_run_that_never_began_has_nothing_to_clean_up(fakes: GoogleFakes, double: Double) -> None:
    run = Run(fakes, double, "standard")
    assert run.cleanup("FAILED") == "nothing to clean up: the run made nothing"
    assert fakes.leftovers() == []


def test_a_run_without_gpus(fakes: GoogleFakes, double: Double, admin: Api) -> None:
    run = Run(fakes, double, "standard", gpu_machine="", gpu_reservation="", gpu_provisioning="on-demand")
    run.until("launch")
    assert len(list_(admin, "v1", "Pod", labels={RUN_LABEL: run.run_id})) == 1 + run.spec.gpu_workers
    assert not [path for path in run.left() if "rdma" in path or path.endswith("-gpu")]
    run.release()
    assert "GPU-minutes" not in notes_of(run, "release_gpus")["done"]
    run.cleanup()
    assert run.left() == []


def test_why_tasks_failed_is_told_at_the_end(fakes: GoogleFakes, double: Double) -> None:
    run = Run(fakes, double, "standard", infra_zone="us-central1-c")
    run.storage()
    with pytest.raises(NotFound):
        run.network()
    run.cleanup("FAILED")
    errors = errors_of(f"{run.spec.output_root}/runs/{run.run_id}/errors", run.site.documents)
    assert [(error["task"], error["attempt"]) for error in errors] == [("provision_network", 1)]
    assert "TL806" in errors[0]["error"]
