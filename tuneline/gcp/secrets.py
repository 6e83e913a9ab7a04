"""Secret Manager: parameters carry names of secrets, never their values."""

from __future__ import annotations

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call
from tuneline.gcp.clients import Google
from tuneline.gcp.compute import NETWORK_SECONDS


def get_secret(google: Google, name: str, version: str = "latest") -> str:
    """The text of a secret. It goes into no log and no error.

    Args:
        name: SECRET, or projects/P/secrets/SECRET.

    Raises:
        NotFound, Permission: With the account's next move.
    """
    path = name if name.startswith("projects/") else f"projects/{google.project}/secrets/{name}"
    path = path if "/versions/" in path else f"{path}/versions/{version}"
    until = Deadline.after(google.clock, NETWORK_SECONDS)
    answer = call(google, f"read {path}", lambda: google.secrets.access_secret_version({"name": path}, **PLAIN), until)
    text: str = answer.payload.data.decode()
    return text
