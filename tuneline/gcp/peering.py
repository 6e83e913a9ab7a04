"""Private services access: the peering through which a network reaches Managed Lustre."""

from __future__ import annotations

from typing import Any

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.gcp import compute
from tuneline.gcp.calls import call, wait
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import InUse, Unavailable, WaitedTooLong, translate

_log = get_logger("peering")

SERVICE = "services/servicenetworking.googleapis.com"
PEERING = "servicenetworking-googleapis-com"
CONNECT_SECONDS = 600.0
#: A producer may hold on for long after its last instance is gone (magic-modules#18476).
DELETE_SECONDS = 1200.0
CUT_AFTER_SECONDS = 600.0


def network_of(number: str, network: str) -> str:
    """A network as this API names it: by project number."""
    return f"projects/{number}/global/networks/{network}"


def get_connection(google: Google, number: str, network: str, deadline: Deadline) -> dict[str, Any] | None:
    """{network, peering, reservedPeeringRanges} of the network's connection, None where there is none."""
    name = network_of(number, network)

    def send() -> dict[str, Any]:
        connections = google.peering.services().connections()
        answer: dict[str, Any] = connections.list(parent=SERVICE, network=name).execute(num_retries=0)
        return answer

    found = call(google, f"list private services connections of {network}", send, deadline).get("connections", [])
    return next((item for item in found if item.get("network") == name), None)


def ensure_connection(google: Google, number: str, network: str, ranges: str) -> dict[str, Any]:
    """The network's connection with this range in it. Ranges of others stay: an update replaces the list, so theirs are sent along."""
    until, what = Deadline.after(google.clock, CONNECT_SECONDS), f"private services access of {network}"
    while True:
        found = get_connection(google, number, network, until)
        held = list(found.get("reservedPeeringRanges", [])) if found else []
        if found and ranges in held:
            return found
        if until.passed:
            raise WaitedTooLong(f"{what} does not list {ranges}", found=", ".join(held), next_move="run again; it resumes")
        body = {"network": network_of(number, network), "reservedPeeringRanges": [*held, ranges]}
        _run(google, what, _patch(google, body) if found else _create(google, body), until)


def _create(google: Google, body: dict[str, Any]) -> Any:
    return google.peering.services().connections().create(parent=SERVICE, body=body)


def _patch(google: Google, body: dict[str, Any], *, force: bool = False) -> Any:
    return google.peering.services().connections().patch(name=f"{SERVICE}/connections/{PEERING}", body=body, force=force)


def _run(google: Google, what: str, request: Any, until: Deadline, *, patient: bool = True) -> None:
    """Send a request and wait for its operation. Each request sets a whole state, so it may be repeated.

    Args:
        patient: Whether to wait out a refusal because of what else goes on.
    """
    operation = call(google, what, lambda: request.execute(num_retries=0), until if patient else Deadline.after(google.clock, 0))
    name = operation.get("name", "")
    if not operation.get("done"):
        operation = wait(
            google,
            what,
            lambda: google.peering.operations().get(name=name).execute(num_retries=0),
            lambda found: bool(found.get("done")),
            until,
            poll=5.0,
        )
    if operation.get("error"):
        raise translate(operation, what)


def release_range(google: Google, number: str, network: str, ranges: str, run: str) -> bool:
    """Take our range out of the connection; the connection goes with its last range, for then nobody else uses it.

    Returns:
        True if there was something to release.

    Raises:
        WaitedTooLong: The producer still holds it, even after our side was cut.
    """
    until, what = Deadline.after(google.clock, DELETE_SECONDS), f"private services access of {network}"
    begun, cut = google.clock.monotonic(), False
    while found := get_connection(google, number, network, until):
        held = list(found.get("reservedPeeringRanges", []))
        if ranges not in held:
            return False
        name = network_of(number, network)
        try:
            if len(held) > 1:
                body = {"network": name, "reservedPeeringRanges": [other for other in held if other != ranges]}
                _run(google, what, _patch(google, body, force=True), until)
                return True
            request = google.peering.services().connections().deleteConnection
            path = f"{SERVICE}/connections/{PEERING}"
            _run(google, what, request(name=path, body={"consumerNetwork": name}), until, patient=False)
        except (InUse, Unavailable) as error:
            if until.passed:
                raise WaitedTooLong(
                    f"{what} cannot be deleted",
                    found=error.found,
                    next_move="producers may hold it for days; run cleanup again later, the network goes with it",
                ) from error
            if not cut and google.clock.monotonic() - begun >= CUT_AFTER_SECONDS:
                _log.info("%s is still held by its producer; cutting our side", what)
                compute.remove_peering(google, network, PEERING, run, deadline=until)
                cut = True
                continue
            google.clock.sleep(30.0)
    return True
