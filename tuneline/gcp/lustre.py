"""Managed Lustre instances."""

from __future__ import annotations

from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call, delete, ensure, find, wait
from tuneline.gcp.clients import Google
from tuneline.gcp.compare import check_found
from tuneline.gcp.compute import NETWORK_SECONDS, Ensured
from tuneline.gcp.errors import Conflict, Stockout
from tuneline.gcp.operations import REPLAYS, request_id, wait_long
from tuneline.gcp.ownership import Mark, owner

#: gcp.md 2.3: nine minutes when all is well; a full zone is told only at the end.
LUSTRE_SECONDS = 5400.0
MUST = ("filesystem", "network", "capacity_gib", "per_unit_storage_throughput")


def path_of(google: Google, zone: str, name: str) -> str:
    """`projects/P/locations/ZONE/instances/NAME`."""
    return f"projects/{google.project}/locations/{zone}/instances/{name}"


def get_instance(google: Google, zone: str, name: str, *, deadline: Deadline | None = None) -> Any | None:
    """lustre_v1.Instance, None where there is none."""
    until = deadline or Deadline.after(google.clock, NETWORK_SECONDS)
    path = path_of(google, zone, name)
    return find(google, f"read Lustre {name}", lambda: google.lustre.get_instance({"name": path}, **PLAIN), until)


def ensure_instance(google: Google, zone: str, name: str, body: Any, mark: Mark) -> Ensured:
    """The instance as asked, ACTIVE; `resource.mount_point` is `IP@tcp:/filesystem`.

    Raises:
        Stockout: The zone cannot give it (Lustre says code 13).
        Conflict: It is there but another's or different; names both values.
    """
    until, what, path = Deadline.after(google.clock, LUSTRE_SECONDS), f"Lustre {name}", path_of(google, zone, name)
    parent = f"projects/{google.project}/locations/{zone}"

    def create(serial: int) -> None:
        for replay in range(REPLAYS):
            identity = request_id(mark.run, path, serial * REPLAYS + replay)
            request = {"parent": parent, "instance_id": name, "instance": body, "request_id": identity}
            future = call(google, f"create {what}", lambda request=request: google.lustre.create_instance(request, **PLAIN), until)  # type: ignore[misc]
            if not (future.operation.done and future.operation.error.code):
                break
        finish(future.operation.name)

    def read() -> Any | None:
        return get_instance(google, zone, name, deadline=until)

    def full(message: str) -> Stockout:
        found = read()
        if found is not None and mark.made(found):
            delete_instance(google, zone, name, mark.run)
        return Stockout(
            f"zone {zone} could not make {what}: {message}",
            asked=f"create {what}",
            found=message,
            next_move="try again later, or another infra_zone: Lustre says INTERNAL when a zone has no room",
        )

    def finish(operation: str) -> None:
        wait_long(google, google.lustre, operation, f"create {what}", until, poll=15.0, internal=full)

    def settle(found: Any) -> Any | None:
        if found.state.name == "CREATING" and (operation := _in_flight(google, parent, path, "create", until)):
            finish(operation)
        settled = wait(
            google,
            f"wait for {what}",
            read,
            lambda value: value is None or value.state.name not in ("CREATING", "DELETING", "UPDATING", "REPAIRING", "UPGRADING"),
            until,
            poll=15.0,
            state=lambda value: str(value.state.name) if value is not None else "gone",
        )
        if settled is None or settled.state.name == "ACTIVE":
            return settled
        if not mark.made(settled):
            raise Conflict(
                f"{what} is {settled.state.name}",
                asked="an ACTIVE instance",
                found=f"{settled.state.name}: {settled.state_reason}, made by {owner(settled)}",
                next_move="let its owner repair or remove it, or choose another infra_name",
            )
        # What an earlier try of this run left behind when its creation failed.
        delete_instance(google, zone, name, mark.run)
        return None

    found = ensure(google, what, get=read, create=create, settle=settle, deadline=until)
    return Ensured(name, check_found(what, body, found, mark=mark, must=MUST), found)


def _in_flight(google: Google, parent: str, target: str, verb: str, until: Deadline) -> str:
    """The name of the operation of this verb that is in flight on an instance; ''."""
    from google.cloud import lustre_v1

    found = call(google, "list Lustre operations", lambda: google.lustre.list_operations({"name": parent}, **PLAIN), until)
    for operation in found.operations:
        metadata = lustre_v1.OperationMetadata.pb(lustre_v1.OperationMetadata())
        if not operation.done and operation.metadata.Unpack(metadata) and metadata.target == target and metadata.verb == verb:
            return str(operation.name)
    return ""


def delete_instance(google: Google, zone: str, name: str, run: str) -> bool:
    """Delete it and look until it is gone. The caller has proved that it is ours."""
    until, path = Deadline.after(google.clock, LUSTRE_SECONDS), path_of(google, zone, name)
    parent = f"projects/{google.project}/locations/{zone}"

    def send(serial: int) -> None:
        operation = _in_flight(google, parent, path, "delete", until)
        if not operation:
            request = {"name": path, "request_id": request_id(run, f"{path}/delete", serial)}
            operation = call(
                google, f"delete Lustre {name}", lambda: google.lustre.delete_instance(request, **PLAIN), Deadline.after(google.clock, 0)
            ).operation.name
        wait_long(google, google.lustre, operation, f"delete Lustre {name}", until, poll=15.0)

    return delete(google, f"Lustre {name}", get=lambda: get_instance(google, zone, name, deadline=until), send=send, deadline=until)
