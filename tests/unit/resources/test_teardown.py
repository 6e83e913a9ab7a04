"""From empty to ready to empty, and what must never be touched."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from tests.fakes.google import GoogleFakes
from tests.unit.resources.stand import stand
from tuneline.gcp import compute
from tuneline.gcp.clients import Google
from tuneline.gcp.ownership import Mark
from tuneline.resources.teardown import LeftBehind

SYSTEMS: list[tuple[str, dict[str, Any]]] = [
    ("autopilot", {}),
    ("standard", {}),
    ("standard", {"infra_network": "tuneline-net"}),
    ("standard", {"gpu_provisioning": "spot", "gpu_reservation": ""}),
    ("a4x", {}),
    ("lustre", {}),
    ("lustre", {"infra_network": "default"}),
]
BUCKET = "b/demo-tuneline"
OTHER_RUN = "tlotherother"


def made(fakes: GoogleFakes) -> list[tuple[str, str]]:
    """(method, path or name) of every insert and create that began an operation."""
    return [(call.method, str(call.body)) for call in fakes.calls if call.method.endswith((".insert", ".create")) and call.status == 200]


@pytest.mark.parametrize(("system", "changes"), SYSTEMS)
def test_empty_to_ready_to_empty_each_task_twice(fakes: GoogleFakes, google: Google, system: str, changes: dict[str, Any]) -> None:
    run = stand(fakes, google, system, **changes)
    run.everything()
    ready = fakes.leftovers()
    run.everything()
    assert fakes.leftovers() == ready
    requests = made(fakes)
    assert len(requests) == len(set(requests))
    assert all(entry.created for entry in run.inventory.entries if entry.name != "default")
    assert (run.names.pool in str(ready)) is (system != "autopilot")
    run.teardown()
    assert fakes.leftovers() == [BUCKET]
    assert fakes.storage.bindings("demo-tuneline") == []
    assert {entry.kind for entry in run.inventory.entries if entry.created} == {"bucket"}
    assert run.teardown().deleted == []


def test_gpus_go_alone_by_default(fakes: GoogleFakes, google: Google) -> None:
    run = stand(fakes, google, "standard")
    run.network_and_cluster()
    before = fakes.leftovers()
    run.gpus()
    assert run.teardown("gpus").deleted == [f"node pool {run.names.pool}"]
    assert fakes.leftovers() == before


def test_none_touches_nothing(fakes: GoogleFakes, google: Google) -> None:
    run = stand(fakes, google, "standard")
    run.network_and_cluster()
    run.gpus()
    before, calls = fakes.leftovers(), len(fakes.calls)
    assert run.teardown("none").deleted == []
    assert (fakes.leftovers(), len(fakes.calls)) == (before, calls)


def test_what_another_run_made_is_used_and_stays(fakes: GoogleFakes, google: Google) -> None:
    first = stand(fakes, google, "standard", run_id=OTHER_RUN)
    first.network_and_cluster()
    before = fakes.leftovers()
    second = stand(fakes, google, "standard")
    assert not second.network_and_cluster().created
    second.gpus()
    ended = second.teardown()
    assert ended.deleted == [f"node pool {second.names.pool}"]
    assert f"cluster {second.names.cluster}" in ended.kept
    assert fakes.leftovers() == before
    first.teardown()
    assert fakes.leftovers() == []


def test_a_cluster_in_which_another_run_has_gpus_stays(fakes: GoogleFakes, google: Google) -> None:
    first, second = stand(fakes, google, "standard"), stand(fakes, google, "standard", run_id=OTHER_RUN)
    first.network_and_cluster()
    second.network_and_cluster()
    second.gpus()
    with pytest.raises(LeftBehind):
        first.teardown()
    assert f"projects/demo/locations/us-central1/clusters/tuneline/nodePools/{second.names.pool}" in fakes.leftovers()


def test_a_persons_rule_on_our_network_stays_and_is_named(fakes: GoogleFakes, google: Google) -> None:
    run = stand(fakes, google, "standard", infra_network="tuneline-net")
    run.network_and_cluster()
    rule = compute_v1.Firewall(
        name="ssh-for-ada", network="projects/demo/global/networks/tuneline-net", allowed=[compute_v1.Allowed(I_p_protocol="tcp")]
    )
    compute.ensure_resource(google, compute.FIREWALL, rule, Mark("person", "never"))
    with pytest.raises(LeftBehind, match="networks of run") as caught:
        run.teardown()
    assert "ssh-for-ada" in str(caught.value)
    assert [path for path in fakes.leftovers() if "firewalls" in path] == ["projects/demo/global/firewalls/ssh-for-ada"]
    compute.delete_resource(google, compute.FIREWALL, "ssh-for-ada", "person")
    run.teardown()
    assert fakes.leftovers() == []


@pytest.mark.parametrize(
    "method",
    [
        "container.projects.locations.clusters.nodePools.delete",
        "container.projects.locations.clusters.delete",
        "compute.firewalls.delete",
        "compute.networkEndpointGroups.delete",
        "compute.subnetworks.delete",
        "compute.networks.delete",
    ],
)
def test_a_teardown_that_breaks_off_is_finished_by_the_next(fakes: GoogleFakes, google: Google, method: str) -> None:
    run = stand(fakes, google, "standard")
    run.network_and_cluster()
    run.gpus()
    fakes.fail(method, 403, "Required 'x.y.delete' permission for 'it'")
    with pytest.raises(LeftBehind, match="needs x"):
        run.teardown()
    assert fakes.unmet() == []
    run.teardown()
    assert fakes.leftovers() == []


@pytest.mark.parametrize("method", ["compute.*.delete", "container.*.delete"])
def test_storms_and_lost_answers_leave_nothing(fakes: GoogleFakes, google: Google, method: str) -> None:
    run = stand(fakes, google, "standard")
    run.network_and_cluster()
    run.gpus()
    fakes.fail(method, 503, times=3)
    fakes.fail(method, None, times=2, after=True)
    run.teardown()
    assert fakes.unmet() == []
    assert fakes.leftovers() == []


def test_dranets_networks_go_with_their_cluster_only(fakes: GoogleFakes, google: Google) -> None:
    run = stand(fakes, google, "a4x")
    run.network_and_cluster()
    run.gpus()
    other = "projects/demo/global/networks/gke-anp-ffffffff-b-mrdma"
    fakes.compute.plant("networks", "global", {"name": "gke-anp-ffffffff-b-mrdma"}, "demo")
    assert any("gke-anp-" in path for path in fakes.leftovers())
    run.teardown()
    assert fakes.leftovers() == []
    assert other in fakes.leftovers(planted=True)
