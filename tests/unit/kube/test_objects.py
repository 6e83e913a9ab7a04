"""Apply, list and delete against answers that a real server gives rarely; the usual ones are in tests/kube."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking, failure
from tuneline.core.clock import Deadline
from tuneline.kube.api import Ref
from tuneline.kube.errors import ApplyConflict, DeleteStuck, ReadBackMismatch
from tuneline.kube.objects import apply_, delete_, get, list_, refs_of_run

Serve = Callable[[Handler], Server]
REF = Ref("v1", "ConfigMap", "c", "ns")
BODY = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c", "namespace": "ns", "labels": {"managed-by": "tuneline", "tuneline-run": "tl1"}},
    "data": {"a": "1"},
}


class Store:
    """One object, as an API server holds it."""

    def __init__(self, held: dict[str, Any] | None = None, conflicts: int = 0, drop: str = "") -> None:
        self.held, self.conflicts, self.drop = held, conflicts, drop
        self.forced: list[str] = []

    def handle(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer(body=self.held) if self.held else failure(404, "not found")
        assert request.method == "PATCH"
        self.forced.append(request.query["force"])
        assert request.query["fieldManager"] == "tuneline"
        assert request.query["fieldValidation"] == "Strict"
        assert request.headers["content-type"] == "application/apply-patch+yaml"
        if self.conflicts and request.query["force"] == "false":
            return failure(409, "Apply failed with 1 conflict", causes=[{"field": ".data.a", "message": 'conflict with "kubectl"'}])
        self.held = {**(self.held or {}), **{name: value for name, value in request.body.items() if name != self.drop}}
        return Answer(body=self.held)


def test_a_new_object_is_made_and_a_second_apply_finds_it(serve: Serve, clock: Ticking) -> None:
    store = Store()
    api = serve(store.handle).api(clock)
    assert apply_(api, BODY).created
    again = apply_(api, BODY)
    assert (again.created, again.adopted) == (False, False)
    assert store.forced == ["false", "false"]


def test_fields_of_our_own_object_are_taken_back(serve: Serve, clock: Ticking) -> None:
    store = Store({**BODY, "data": {"a": "other"}}, conflicts=1)
    assert apply_(serve(store.handle).api(clock), BODY).body["data"] == {"a": "1"}
    assert store.forced == ["false", "true"]


def test_a_conflict_over_an_object_that_came_meanwhile_names_field_and_owner(serve: Serve, clock: Ticking) -> None:
    with pytest.raises(ApplyConflict) as caught:
        apply_(serve(Store(conflicts=1).handle).api(clock), BODY)
    assert caught.value.found == '.data.a: conflict with "kubectl"'


@pytest.mark.parametrize("labels", [{}, {"managed-by": "tuneline", "tuneline-run": "tl2"}, {"managed-by": "helm"}])
def test_an_object_of_somebody_else_is_left_alone(serve: Serve, clock: Ticking, labels: dict[str, str]) -> None:
    store = Store({**BODY, "metadata": {**BODY["metadata"], "labels": labels}, "data": {"a": "2"}})
    with pytest.raises(ApplyConflict) as caught:
        apply_(serve(store.handle).api(clock), BODY)
    assert "not ours" in caught.value.message
    assert caught.value.asked == ".data.a: wanted '1', found '2'"
    assert store.forced == []


def test_an_object_of_somebody_else_that_says_the_same_is_adopted(serve: Serve, clock: Ticking) -> None:
    store = Store({**BODY, "metadata": {"name": "c", "namespace": "ns"}, "data": {"a": "1", "b": "2"}})
    applied = apply_(serve(store.handle).api(clock), BODY)
    assert applied.adopted
    assert store.forced == [], "not even our labels: it is never deleted by us"


def test_a_dropped_field_is_noticed(serve: Serve, clock: Ticking) -> None:
    with pytest.raises(ReadBackMismatch) as caught:
        apply_(serve(Store(drop="data").handle).api(clock), BODY)
    assert caught.value.asked == ".data: {'a': '1'} is missing"


def test_a_kind_that_is_not_served_has_no_objects(serve: Serve, clock: Ticking) -> None:
    api = serve(lambda request: failure(404, "no such path")).api(clock)
    assert get(api, Ref("example.com/v1", "Thing", "x")) is None
    assert list_(api, "example.com/v1", "Thing") == []
    assert delete_(api, [Ref("example.com/v1", "Thing", "x")], Deadline.after(clock, 1)) == []


def test_lists_are_read_to_their_end_and_started_again_when_they_are_too_old(serve: Serve, clock: Ticking) -> None:
    def item(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "ns"}}

    pages = [
        Answer(body={"items": [item("a")], "metadata": {"continue": "t1"}}),
        failure(410, "The provided continue parameter is too old"),
        Answer(body={"items": [item("a")], "metadata": {"continue": "t2"}}),
        Answer(body={"items": [item("b")], "metadata": {}}),
    ]
    server = serve(lambda request: pages.pop(0))
    refs = refs_of_run(server.api(clock), "tl1", [("v1", "ConfigMap")])
    assert [str(ref) for ref in refs] == ["ConfigMap ns/a", "ConfigMap ns/b"]
    assert {request.query["labelSelector"] for request in server.requests} == {"managed-by=tuneline,tuneline-run=tl1"}
    assert [request.query.get("continue") for request in server.requests] == [None, "t1", None, "t2"]


class Deletable:
    """An object that goes when its finalizers are gone."""

    def __init__(self, finalizers: list[str], goes_after: int = 0) -> None:
        self.body: dict[str, Any] | None = {**BODY, "metadata": {**BODY["metadata"], "finalizers": finalizers}}
        self.goes_after, self.patches = goes_after, 0

    def handle(self, request: Request) -> Answer:
        if self.body is None:
            return failure(404, "gone")
        metadata = self.body["metadata"]
        if request.method == "DELETE":
            assert request.body == {"propagationPolicy": "Background"}
            metadata["deletionTimestamp"] = "2026-11-30T20:00:00Z"
        if request.method == "PATCH":
            assert request.body == {"metadata": {"finalizers": None}}
            metadata["finalizers"], self.patches = [], self.patches + 1
        self.goes_after -= 1
        if metadata.get("deletionTimestamp") and not metadata["finalizers"] and self.goes_after <= 0:
            self.body = None
            return failure(404, "gone") if request.method == "GET" else Answer(body={})
        return Answer(body=self.body)


def test_delete_returns_when_the_object_is_gone(serve: Serve, clock: Ticking) -> None:
    thing = Deletable([], goes_after=5)
    assert delete_(serve(thing.handle).api(clock), [REF], Deadline.after(clock, 60)) == []
    assert thing.body is None
    assert sum(clock.slept) <= 10


def test_finalizers_are_taken_away_only_after_the_grace(serve: Serve, clock: Ticking) -> None:
    thing = Deletable(["ray.io/gcs-ft-redis-cleanup-finalizer"])
    patched = delete_(serve(thing.handle).api(clock), [REF], Deadline.after(clock, 900), finalizer_grace=300)
    assert patched == ["ConfigMap ns/c: took away ray.io/gcs-ft-redis-cleanup-finalizer after 300 s"]
    assert thing.patches == 1
    assert 300 <= sum(clock.slept) <= 304


def test_what_is_left_at_the_deadline_is_named_with_its_finalizers(serve: Serve, clock: Ticking) -> None:
    thing = Deletable(["example.com/slow"])
    with pytest.raises(DeleteStuck) as caught:
        delete_(serve(thing.handle).api(clock), [REF], Deadline.after(clock, 60))
    assert caught.value.found == "ConfigMap ns/c (example.com/slow)"
    assert thing.patches == 0
    assert sum(clock.slept) == pytest.approx(60, abs=2)
