"""google.longrunning operations: Lustre's, Service Networking's, Service Usage's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes.errors import ApiError, rpc_status
from tests.fakes.faults import Faults
from tests.fakes.world import Body, World

#: What an operation answers with: a response, or an error of it.
Effect = Callable[[], Body | ApiError]


class LongRunning:
    """Operations by name; each takes virtual time and then has an effect or an error."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.bodies: dict[str, Body] = {}

    def start(
        self,
        method: str,
        name: str,
        target: str,
        seconds: float,
        effect: Effect,
        undo: Callable[[ApiError], None] | None = None,
        metadata: Body | None = None,
    ) -> Body:
        """Begin an operation on `target`; where a test wants it to fail, `undo` gets the error in place of `effect`."""
        fault = self.faults.find(method, target, self.world.now())
        body: dict[str, Any] = {"name": name, "done": False, "metadata": {**(metadata or {}), "createTime": self.world.stamp()}}
        if not metadata:
            del body["metadata"]
        self.bodies[name] = body

        def end() -> None:
            if fault and fault.error:
                result: Body | ApiError = fault.error()
                if undo:
                    undo(result)  # type: ignore[arg-type]
            else:
                result = effect()
            body["done"] = True
            if metadata:
                body["metadata"]["endTime"] = self.world.stamp()
            if isinstance(result, ApiError):
                body["error"] = rpc_status(result.status, result.message)
            else:
                body["response"] = result

        self.world.after(seconds, end)
        return body

    def get(self, name: str) -> Body:
        if name not in self.bodies:
            raise ApiError(404, f"Operation '{name}' was not found.")
        return self.bodies[name]


EMPTY: Body = {"@type": "type.googleapis.com/google.protobuf.Empty"}
