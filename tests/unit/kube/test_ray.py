"""Ray's own count of GPUs, by the API server's proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking
from tuneline.kube.ray import count_gpus

Serve = Callable[[Handler], Server]
PATH = "/api/v1/namespaces/ns/services/http:r-head-svc:dashboard/proxy/api/v0/nodes"


def nodes(*found: dict[str, Any]) -> dict[str, Any]:
    """As Ray 2.60's dashboard answers."""
    return {"result": True, "msg": "", "data": {"result": {"total": len(found), "result": list(found)}}}


def test_gpus_of_living_nodes_count(serve: Serve, clock: Ticking) -> None:
    alive = {"state": "ALIVE", "resources_total": {"GPU": 8.0, "CPU": 200.0}}
    server = serve(lambda request: Answer(200, nodes({"state": "ALIVE", "resources_total": {}}, alive, alive, {**alive, "state": "DEAD"})))
    assert count_gpus(server.api(clock), "ns", "r-head-svc") == 16
    assert [request.path for request in server.requests] == [PATH]


@pytest.mark.parametrize("answer", [Answer(503, {"kind": "Status"}), Answer(403, {"kind": "Status"}), Answer(404, "no"), Answer(200, {})])
def test_a_dashboard_out_of_reach_is_asked_once_and_says_nothing(serve: Serve, clock: Ticking, answer: Answer) -> None:
    asked: list[Request] = []

    def handle(request: Request) -> Answer:
        asked.append(request)
        return answer

    assert count_gpus(serve(handle).api(clock), "ns", "r-head-svc") is None
    assert len(asked) == 1
