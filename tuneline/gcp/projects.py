"""The project itself."""

from __future__ import annotations

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call
from tuneline.gcp.clients import Google
from tuneline.gcp.compute import NETWORK_SECONDS


def project_number(google: Google) -> str:
    """The project's number, which private services access and IAM principals need.

    Raises:
        NotFound, Permission: There is no such project, or it may not be seen.
    """
    until = Deadline.after(google.clock, NETWORK_SECONDS)
    name = f"projects/{google.project}"
    found = call(google, f"read {name}", lambda: google.projects.get_project({"name": name}, **PLAIN), until)
    return str(found.name).rsplit("/", 1)[-1]
