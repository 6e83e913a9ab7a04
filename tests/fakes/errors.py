"""Errors as Google's servers write them: an HTTP status, and a body that Google's clients turn into exceptions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

#: google.rpc.Code of each canonical name.
CODES = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}

_CANONICAL = {
    400: ("INVALID_ARGUMENT", "badRequest"),
    401: ("UNAUTHENTICATED", "authError"),
    403: ("PERMISSION_DENIED", "forbidden"),
    404: ("NOT_FOUND", "notFound"),
    409: ("ALREADY_EXISTS", "alreadyExists"),
    412: ("FAILED_PRECONDITION", "conditionNotMet"),
    429: ("RESOURCE_EXHAUSTED", "rateLimitExceeded"),
    500: ("INTERNAL", "backendError"),
    501: ("UNIMPLEMENTED", "notImplemented"),
    503: ("UNAVAILABLE", "backendError"),
    504: ("DEADLINE_EXCEEDED", "backendError"),
}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: HTTP status.
        message: What Google's server would say.
        status: google.rpc canonical name; the usual one of `code` if ''.
        reason: `errors[0].reason`; the usual one of `code` if ''.
        info: (reason, domain) of an ErrorInfo detail.
        metadata: Metadata of that ErrorInfo.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: str = "",
        reason: str = "",
        info: tuple[str, str] | None = None,
        metadata: dict[str, str] | None = None,
        details: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        usual_status, usual_reason = _CANONICAL.get(code, ("UNKNOWN", "backendError"))
        self.code = code
        self.message = message
        self.status = status or usual_status
        self.reason = reason or usual_reason
        self.details = list(details or ())
        if info:
            reason_, domain = info
            self.details.append(
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason_, "domain": domain, "metadata": metadata or {}}
            )

    def body(self, *, with_status: bool) -> dict[str, Any]:
        """The JSON of the answer; Compute and Storage leave the canonical status out."""
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "errors": [{"message": self.message, "domain": "global", "reason": self.reason}],
        }
        if with_status:
            error["status"] = self.status
        if self.details:
            error["details"] = self.details
        return {"error": error}

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.code).phrase


def rpc_status(code: str, message: str, details: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A google.rpc.Status as operations carry it; `code` is a canonical name."""
    status: dict[str, Any] = {"code": CODES[code], "message": message}
    if details:
        status["details"] = details
    return status


def not_found(path: str) -> ApiError:
    """Compute's answer to a resource that is not there."""
    return ApiError(404, f"The resource '{path}' was not found")


def invalid(field: str, value: Any, why: str) -> ApiError:
    """Compute's answer to a value that its schema allows and its rules do not."""
    return ApiError(400, f"Invalid value for field '{field}': '{value}'. {why}", reason="invalid")


def in_use(kind: str, path: str, user: str) -> ApiError:
    """Compute's answer to the deletion of what something else needs."""
    message = f"The {kind} resource '{path}' is already being used by '{user}'"
    return ApiError(400, message, reason="resourceInUseByAnotherResource")


def not_ready(path: str) -> ApiError:
    """Compute's answer to the use of what is still being made or deleted."""
    return ApiError(400, f"The resource '{path}' is not ready", reason="resourceNotReady")
