"""Each line once, whatever breaks: connections, the container, the reader itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kube.support import Answer, Handler, Request, Server, Ticking, failure
from tuneline.core.clock import Deadline
from tuneline.kube.api import Ref
from tuneline.kube.logs import LogPosition, follow, read

Serve = Callable[[Handler], Server]
POD = Ref("v1", "Pod", "p", "ns")


def stamp(nanoseconds: int) -> str:
    """As the kubelet writes times: without trailing zeros."""
    second, rest = divmod(nanoseconds, 10**9)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"2026-11-30T20:{second // 60:02d}:{second % 60:02d}{fraction}Z"


class Node:
    """A kubelet: log files of one container, the newest last, cut where a test says so."""

    def __init__(self) -> None:
        self.logs: list[list[tuple[int, str]]] = [[]]
        self.phase, self.restart_policy = "Running", "Always"
        self.cuts: list[int] = []  # lines after which following connections break
        self.grow: Callable[[], None] = lambda: None
        self.queries: list[dict[str, str]] = []

    def log(self, nanoseconds: int, text: str) -> None:
        self.logs[-1].append((nanoseconds, text))

    def handle(self, request: Request) -> Answer:
        if not request.path.endswith("/log"):
            state = {"terminated": {"exitCode": 0}} if self.phase != "Running" else {"running": {}}
            status = {"phase": self.phase, "containerStatuses": [{"name": "c", "restartCount": len(self.logs) - 1, "state": state}]}
            return Answer(body={"metadata": {"name": "p"}, "spec": {"restartPolicy": self.restart_policy}, "status": status})
        self.queries.append(request.query)
        self.grow()
        log = self.logs[-2] if request.query["previous"] == "true" else self.logs[-1]
        since = request.query.get("sinceTime", "")
        lines = [f"{stamp(at)} {text}\n" for at, text in log if stamp(at)[:19] >= since[:19]]
        if self.cuts and request.query["follow"] == "true":
            cut = self.cuts.pop(0)
            half = lines[cut][:7] if cut < len(lines) else ""
            return Answer(body=[*lines[:cut], *([half] if half else [])], cut=True)
        return Answer(body=lines)


def followed(serve: Serve, clock: Ticking, node: Node, position: LogPosition | None = None, seconds: float = 3600) -> list[str]:
    return list(follow(serve(node.handle).api(clock), POD, "c", position or LogPosition(), Deadline.after(clock, seconds)))


def test_a_log_that_is_whole_is_given_once(serve: Serve, clock: Ticking) -> None:
    node = Node()
    node.phase = "Succeeded"
    for number in range(5):
        node.log(number * 10**8, f"line {number}")
    assert followed(serve, clock, node) == [f"line {number}" for number in range(5)]


def test_equal_lines_at_one_time_are_all_given(serve: Serve, clock: Ticking) -> None:
    node = Node()
    for _ in range(3):
        node.log(0, "same")
    position, api = LogPosition(), serve(node.handle).api(clock)
    assert list(read(api, POD, "c", position)) == ["same"] * 3
    assert list(read(api, POD, "c", position)) == []
    node.log(0, "same")
    assert list(read(api, POD, "c", position)) == ["same"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_connections_that_break_anywhere_lose_and_repeat_nothing(seed: int) -> None:
    chance, node, clock = random.Random(seed), Node(), Ticking()
    total, at = chance.randint(0, 60), 0
    texts: list[str] = []

    def grow() -> None:
        nonlocal at
        for _ in range(chance.randint(0, 20)):
            if len(texts) < total:
                at += chance.choice([0, 0, 1, 5 * 10**8, 3 * 10**9])
                texts.append(chance.choice(["", "a", f"unique {len(texts)}"]))
                node.log(at, texts[-1])
        if len(texts) == total:
            node.phase = "Succeeded"

    node.grow = grow
    node.cuts = [chance.randint(0, 25) for _ in range(chance.randint(0, 10))]
    server = Server(node.handle)
    try:
        position, given_lines = LogPosition(), list[str]()
        for line in follow(server.api(clock), POD, "c", position, Deadline.after(clock, 3600)):
            given_lines.append(line)
            if chance.random() < 0.05:  # the reader is killed and goes on from what it has written down
                position = LogPosition.from_json(position.to_json())
                given_lines += follow(server.api(clock), POD, "c", position, Deadline.after(clock, 3600))
                break
        assert given_lines == texts
    finally:
        server.close()


def test_lines_out_of_order_within_a_second_are_given_once(serve: Serve, clock: Ticking) -> None:
    node, position = Node(), LogPosition()
    api = serve(node.handle).api(clock)
    node.log(5 * 10**9, "out")
    assert list(read(api, POD, "c", position)) == ["out"]
    node.log(5 * 10**9 - 10**8, "error, a little earlier")
    assert list(read(api, POD, "c", position)) == ["error, a little earlier"]
    assert list(read(api, POD, "c", position)) == []


def test_the_rest_of_a_container_that_was_started_again_comes_first(serve: Serve, clock: Ticking) -> None:
    node, position = Node(), LogPosition()
    api = serve(node.handle).api(clock)
    node.log(0, "first")
    assert list(read(api, POD, "c", position)) == ["first"]
    node.log(10**9, "last words")
    node.logs.append([])
    node.log(9 * 10**9, "again")
    assert list(read(api, POD, "c", position)) == ["last words", "again"]
    node.logs += [[], []]
    node.log(20 * 10**9, "third")
    assert list(read(api, POD, "c", position)) == [
        "[tuneline: the container was started 2 times since; only the last log is kept]",
        "third",
    ]


def test_what_the_node_rotated_away_is_said_to_be_lost(serve: Serve, clock: Ticking) -> None:
    node, position = Node(), LogPosition()
    api = serve(node.handle).api(clock)
    node.log(0, "seen")
    assert list(read(api, POD, "c", position)) == ["seen"]
    node.logs[-1] = [(50 * 10**9, "after the rotation")]
    lines = list(read(api, POD, "c", position))
    assert lines == [f"[tuneline: lines after {stamp(0)} seen are lost: the node rotated the log]", "after the rotation"]


@pytest.mark.parametrize(
    "answer", [failure(400, 'container "c" is waiting to start: ContainerCreating'), failure(404, "no pod"), failure(503, "down")]
)
def test_a_log_that_is_not_there_gives_no_line(serve: Serve, clock: Ticking, answer: Answer) -> None:
    node = Node()

    def handle(request: Request) -> Answer:
        return answer if request.path.endswith("/log") else node.handle(request)

    api = serve(handle).api(clock)
    assert list(read(api, POD, "c", LogPosition())) == []
    assert list(follow(api, POD, "c", LogPosition(), Deadline.after(clock, 30))) == []
    assert sum(clock.slept) == pytest.approx(30, abs=2)


def test_following_ends_with_the_pod(serve: Serve, clock: Ticking) -> None:
    answers: list[Any] = [failure(404, "gone")]
    assert list(follow(serve(lambda request: answers[0]).api(clock), POD, "c", LogPosition(), Deadline.after(clock, 30))) == []
    assert clock.slept == []
