"""Which Google APIs a project has on."""

from __future__ import annotations

from collections.abc import Iterable

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call
from tuneline.gcp.clients import Google
from tuneline.gcp.operations import wait_long

ENABLE_SECONDS = 600.0
#: Most services that one request may enable.
BATCH = 20


def missing_services(google: Google, services: Iterable[str], *, number: str) -> list[str]:
    """Those of `services` (container.googleapis.com ...) that are off."""
    until = Deadline.after(google.clock, ENABLE_SECONDS)
    request = {"parent": f"projects/{number}", "filter": "state:ENABLED", "page_size": 200}
    found = call(google, "list the APIs that are on", lambda: list(google.services.list_services(request, **PLAIN)), until)
    on = {service.name.rsplit("/", 1)[-1] for service in found}
    return sorted(set(services) - on)


def ensure_services(google: Google, services: Iterable[str], *, number: str) -> list[str]:
    """Switch on what is off; returns what this call switched on.

    Raises:
        Permission: The caller may not; the message names the APIs that are off.
    """
    until, off = Deadline.after(google.clock, ENABLE_SECONDS), missing_services(google, services, number=number)
    for start in range(0, len(off), BATCH):
        request = {"parent": f"projects/{number}", "service_ids": off[start : start + BATCH]}
        what = f"enable {', '.join(request['service_ids'])}"
        future = call(google, what, lambda request=request: google.services.batch_enable_services(request, **PLAIN), until)  # type: ignore[misc]
        if not future.operation.done:
            wait_long(google, google.services, future.operation.name, what, until, poll=3.0)
    return off
