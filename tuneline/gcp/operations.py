"""Long operations: of containers, of compute, and google.longrunning. DONE is not success; what is in flight is found and waited for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call, wait
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import GoogleError, translate
from tuneline.gcp.faults import INTERNAL

#: Ids that one request may go through because earlier answers to them were failures that the API only repeats.
REPLAYS = 3


def request_id(run: str, resource: str, serial: int = 0) -> str:
    """The id under which compute and Lustre take a request once, whoever repeats it.

    `serial` rises when an earlier request with the same id has failed or what it made is gone: the API would only replay that old answer.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tuneline/{run}/{resource}/{serial}"))


def find_container_operation(google: Google, location: str, target: str, kinds: tuple[str, ...], deadline: Deadline) -> Any | None:
    """The operation of one of these types that is in flight on a cluster or pool.

    Args:
        target: `clusters/C` or `clusters/C/nodePools/P`.
    """
    parent = f"projects/{google.project}/locations/{location}"
    found = call(google, f"list operations in {location}", lambda: google.clusters.list_operations(parent=parent, **PLAIN), deadline)
    for operation in found.operations:
        if operation.status.name != "DONE" and operation.operation_type.name in kinds and operation.target_link.endswith(f"/{target}"):
            return operation
    return None


def wait_container(
    google: Google, location: str, operation: Any, what: str, deadline: Deadline, *, watch: Callable[[], None] | None = None
) -> None:
    """Wait for a container operation.

    Raises:
        GoogleError: It ended with an error, typed by its conditions.
    """
    name = f"projects/{google.project}/locations/{location}/operations/{operation.name}"
    done = wait(
        google,
        what,
        lambda: google.clusters.get_operation(name=name, **PLAIN),
        lambda found: bool(found.status.name == "DONE"),
        deadline,
        poll=10.0,
        watch=watch,
        state=lambda found: f"{found.operation_type.name} {found.status.name} {found.detail}",
    )
    if done.error.code or done.error.message:
        raise translate(done, what)


def find_compute(google: Google, scope: str, place: str, target: str, deadline: Deadline) -> Any | None:
    """The compute operation that is in flight on a resource.

    Args:
        scope, place: '' for a global resource, else region | zone and its name.
        target: `projects/P/global/networks/N`, as operations name it.
    """
    client = google.compute(f"{(scope or 'global').capitalize()}Operations")
    where = {scope: place} if scope else {}

    def send() -> list[Any]:
        return list(client.list({"project": google.project, **where, "filter": "status != DONE"}, **PLAIN))

    running = call(google, "list compute operations", send, deadline)
    return next((item for item in running if item.target_link.endswith(f"/{target}")), None)


def read_compute(google: Google, operation: Any) -> Any:
    """A compute operation as it is now."""
    if operation.zone:
        return google.compute("ZoneOperations").get(
            project=google.project, zone=operation.zone.rsplit("/", 1)[-1], operation=operation.name, **PLAIN
        )
    if operation.region:
        return google.compute("RegionOperations").get(
            project=google.project, region=operation.region.rsplit("/", 1)[-1], operation=operation.name, **PLAIN
        )
    return google.compute("GlobalOperations").get(project=google.project, operation=operation.name, **PLAIN)


def send_compute(google: Google, what: str, send: Callable[[str], Any], run: str, resource: str, serial: int, deadline: Deadline) -> Any:
    """Send an insert or delete under its request id; an answer that is an old failure is a replay, so the next id is taken.

    Args:
        send: Takes the request id; returns compute_v1.Operation (the `*_unary` methods).
    """
    for replay in range(REPLAYS):
        identity = request_id(run, resource, serial * REPLAYS + replay)
        operation = call(google, what, lambda identity=identity: send(identity), deadline)  # type: ignore[misc]
        if not (_compute_done(operation) and operation.error.errors):
            break
    return operation


def wait_compute(google: Google, operation: Any, what: str, deadline: Deadline) -> None:
    """Wait for a compute operation.

    Raises:
        GoogleError: It ended with an error.
    """
    if not _compute_done(operation):
        operation = wait(
            google,
            what,
            lambda: read_compute(google, operation),
            _compute_done,
            deadline,
            poll=3.0,
            state=lambda found: f"{found.operation_type} {found.progress}%",
        )
    if operation.error.errors or operation.http_error_status_code >= 400:
        raise translate(operation, what)


def _compute_done(operation: Any) -> bool:
    return getattr(operation.status, "name", str(operation.status)) == "DONE"


def wait_long(
    google: Google,
    client: Any,
    name: str,
    what: str,
    deadline: Deadline,
    *,
    poll: float = 10.0,
    internal: Callable[[str], GoogleError] | None = None,
) -> None:
    """Wait for a google.longrunning.Operation of a client that has the operations mixin.

    Args:
        internal: What an end with INTERNAL means to this API, given its message.

    Raises:
        GoogleError: It ended with an error.
    """
    done = wait(
        google,
        what,
        lambda: client.get_operation({"name": name}, **PLAIN),
        lambda found: bool(found.done),
        deadline,
        poll=poll,
        state=lambda found: f"operation {found.name}",
    )
    if done.error.code == INTERNAL and internal:
        raise internal(done.error.message)
    if done.error.code:
        raise translate(done.error, what)
