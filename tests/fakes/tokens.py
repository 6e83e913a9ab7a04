"""Access tokens that end after an hour of virtual time, and credentials that fetch new ones."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import google.auth.credentials

from tests.fakes.errors import ApiError
from tests.fakes.world import World


class Tokens:
    """Who holds which token until when.

    Attributes:
        lifetime: Virtual seconds for which a new token is good.
        required: Whether a call without a token of ours is refused.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._issued: dict[str, tuple[str, float]] = {}
        self.lifetime = 3600.0
        self.required = False

    def issue(self, email: str, seconds: float | None = None) -> tuple[str, float]:
        """A new token of `email` and the virtual moment of its end."""
        with self._world.lock:
            token = f"ya29.{email}.{self._world.serial()}"
            ends = self._world.now() + (self.lifetime if seconds is None else seconds)
            self._issued[token] = (email, ends)
        return token, ends

    def expire(self) -> None:
        """End every token now."""
        self._issued = {token: (email, self._world.now()) for token, (email, _) in self._issued.items()}

    def caller(self, authorization: str) -> str:
        """The e-mail behind an Authorization header, '' for a caller without a token of ours.

        Raises:
            ApiError: 401 for a token that has ended, and for a missing one where tokens are required.
        """
        token = authorization.removeprefix("Bearer ")
        email, ends = self._issued.get(token, ("", 0.0))
        if (email and self._world.clock.now() >= ends) or (self.required and not email):
            raise ApiError(
                401,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
                "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.",
                info=("ACCESS_TOKEN_EXPIRED" if email else "CREDENTIALS_MISSING", "googleapis.com"),
            )
        return email


class FakeCredentials(google.auth.credentials.Credentials):
    """Credentials of `email`, refreshed from the fakes; `refreshes` counts how often."""

    def __init__(self, issue: Callable[[str], tuple[str, float]], email: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._issue = issue
        self.email = email
        self.refreshes = 0

    def refresh(self, request: Any) -> None:
        self.refreshes += 1
        self.token, ends = self._issue(self.email)
        self.expiry = datetime.datetime.fromtimestamp(ends, datetime.UTC).replace(tzinfo=None)
