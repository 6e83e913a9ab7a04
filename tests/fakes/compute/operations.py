"""Compute's operations: global, of a region, of a zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.fakes.compute.links import link
from tests.fakes.errors import ApiError, not_found
from tests.fakes.faults import Faults
from tests.fakes.world import Body, World, leaf

#: The longest that `wait` holds a call.
WAIT_SECONDS = 120.0


class Operations:
    """Operations by path; each takes virtual time and then has an effect, or an error and none."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.bodies: dict[str, Body] = {}
        self._ends: dict[str, float] = {}
        self._requests: dict[tuple[str, str], str] = {}

    def repeated(self, target: str, request_id: str) -> Body | None:
        """The operation that an equal requestId started on this target before."""
        known = self._requests.get((target, request_id))
        return self.bodies[known] if request_id and known else None

    def start(
        self,
        method: str,
        target: str,
        kind: str,
        seconds: float,
        effect: Callable[[], ApiError | None],
        undo: Callable[[], None],
        caller: str = "",
        request_id: str = "",
    ) -> Body:
        """Begin an operation on the resource `target`.

        At its end comes `effect`, which says whether it failed, or, where a test wants the operation to fail, `undo`.
        """
        scope = "/".join(target.split("/")[2 : 3 if target.split("/")[2] == "global" else 4])
        project = target.split("/")[1]
        name = f"operation-{int(self.world.now() * 1000)}-{self.world.id('operation')[:13]}"
        path = f"projects/{project}/{scope}/operations/{name}"
        where, _, place = scope.partition("/")
        body: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(10**18 + self.world.serial()),
            "name": name,
            "operationType": kind,
            "targetLink": link(target),
            "targetId": str(10**18 + self.world.serial()),
            "status": "RUNNING",
            "user": caller,
            "progress": 0,
            "insertTime": self.world.stamp(),
            "startTime": self.world.stamp(),
            "selfLink": link(path),
        }
        if place:
            body[where.removesuffix("s")] = link(f"projects/{project}/{scope}")
        if request_id:
            body["clientOperationId"] = request_id
            self._requests[(target, request_id)] = path
        fault = self.faults.find(method, target, self.world.now())

        def finish() -> None:
            if fault and fault.error:
                undo()
                error: ApiError | None = fault.error()
            else:
                error = effect()
            body.update(status="DONE", progress=100, endTime=self.world.stamp())
            if error:
                code = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", error.reason).upper()
                body["error"] = {"errors": [{"code": code, "message": error.message}]}
                body.update(httpErrorStatusCode=error.code, httpErrorMessage=error.phrase.upper())

        self.bodies[path] = body
        self._ends[path] = self.world.now() + seconds
        self.world.after(seconds, finish)
        return body

    def get(self, path: str) -> Body:
        """An operation as it is now.

        Raises:
            ApiError: 404.
        """
        if path not in self.bodies:
            raise not_found(path)
        return self.bodies[path]

    def wait(self, path: str) -> Body:
        """Let virtual time pass until the operation is done, two minutes at most."""
        body = self.get(path)
        self.world.clock.advance(max(0.0, min(WAIT_SECONDS, self._ends[path] - self.world.clock.now())))
        self.world.settle()
        return body

    def within(self, parent: str) -> list[Body]:
        return [body for path, body in self.bodies.items() if path.rpartition("/")[0] == parent]

    def running(self) -> list[str]:
        """Names of operations that are not done."""
        return [leaf(path) for path, body in self.bodies.items() if body["status"] != "DONE"]
