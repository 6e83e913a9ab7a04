"""Waiting: watches that break, are too old or say nothing; deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking, failure
from tuneline.core.clock import Deadline
from tuneline.kube.api import Ref
from tuneline.kube.errors import WaitTimeout, WorkloadFailed
from tuneline.kube.watch import wait_for_

Serve = Callable[[Handler], Server]
REF = Ref("ray.io/v1", "RayCluster", "rc", "ns")


def cluster(state: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": "rc", "resourceVersion": str(version)}, "status": {"state": state}}


def event(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": body}


def ready(found: dict[str, Any] | None) -> bool:
    return (found or {}).get("status", {}).get("state") == "ready"


class Script:
    """Answers to GETs of the object and to watches, one after another; the last answer of each is repeated."""

    def __init__(self, gets: list[Answer], watches: list[Answer]) -> None:
        self.gets, self.watches, self.queries = gets, watches, list[dict[str, str]]()

    def handle(self, request: Request) -> Answer:
        if "watch" not in request.query:
            return self.gets.pop(0) if len(self.gets) > 1 else self.gets[0]
        self.queries.append(request.query)
        return self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]


def wait(serve: Serve, clock: Ticking, script: Script, seconds: float = 600, **options: Any) -> Any:
    api = serve(script.handle).api(clock)
    return wait_for_(api, REF, options.pop("condition", ready), Deadline.after(clock, seconds), about="Ray cluster is ready", **options)


def test_what_holds_at_once_is_returned_without_a_watch(serve: Serve, clock: Ticking) -> None:
    script = Script([Answer(body=cluster("ready", 1))], [failure(500, "no watch expected")])
    assert wait(serve, clock, script)["status"]["state"] == "ready"
    assert script.queries == []


def test_a_watch_goes_on_from_what_was_read(serve: Serve, clock: Ticking) -> None:
    events = [event("BOOKMARK", cluster("", 8)), event("MODIFIED", cluster("pending", 8)), event("MODIFIED", cluster("ready", 9))]
    script = Script([Answer(body=cluster("", 7))], [Answer(body=events)])
    assert wait(serve, clock, script)["metadata"]["resourceVersion"] == "9"
    assert script.queries[0]["resourceVersion"] == "7"
    assert script.queries[0]["fieldSelector"] == "metadata.name=rc"


@pytest.mark.parametrize(
    "broken",
    [
        Answer(body=[event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})]),
        failure(410, "too old resource version"),
        failure(503, "the server is going away"),
        Answer(body=[event("MODIFIED", cluster("pending", 8))], cut=True),
        Answer(body=[]),
    ],
    ids=["410 as event", "410 as answer", "503", "cut", "silent"],
)
def test_a_watch_that_ends_is_started_from_a_new_list(serve: Serve, clock: Ticking, broken: Answer) -> None:
    script = Script(
        [Answer(body=cluster("", 7)), Answer(body=cluster("", 100))], [broken, Answer(body=[event("MODIFIED", cluster("ready", 101))])]
    )
    assert wait(serve, clock, script)["metadata"]["resourceVersion"] == "101"
    assert [query["resourceVersion"] for query in script.queries] == ["7", "100"]


def test_an_object_that_is_not_there_yet_and_goes_again(serve: Serve, clock: Ticking) -> None:
    script = Script([failure(404, "no")], [Answer(body=[event("ADDED", cluster("", 1)), event("DELETED", cluster("", 2))])])
    seen: list[bool] = []

    def gone_again(found: dict[str, Any] | None) -> bool:
        seen.append(found is not None)
        return len(seen) == 3 and found is None

    assert wait(serve, clock, script, condition=gone_again) is None
    assert seen == [False, True, False]
    assert "resourceVersion" not in script.queries[0]


def test_the_deadline_tells_state_and_hint(serve: Serve, clock: Ticking) -> None:
    script = Script([Answer(body=cluster("suspended", 7))], [Answer(body=[])])
    with pytest.raises(WaitTimeout) as caught:
        wait(serve, clock, script, seconds=120, hint=lambda: "not enough nvidia.com/gpu")
    assert caught.value.message == "Ray cluster is ready: not within the time given"
    assert caught.value.found == "state suspended; not enough nvidia.com/gpu"
    assert sum(clock.slept) == pytest.approx(120, abs=2)


def test_a_state_that_never_becomes_good_ends_the_wait(serve: Serve, clock: Ticking) -> None:
    def condition(found: dict[str, Any] | None) -> bool:
        raise WorkloadFailed("the image is not there")

    with pytest.raises(WorkloadFailed):
        wait(serve, clock, Script([Answer(body=cluster("failed", 1))], [Answer(body=[])]), condition=condition)
    assert clock.slept == []
