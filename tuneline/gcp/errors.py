"""What can go wrong with Google Cloud, as typed errors that say what to do. `translate` makes one of anything raw."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tuneline.core.errors import TunelineError
from tuneline.gcp.faults import Fault, fault_of, quota_in

QUOTA_PAGE = "https://console.cloud.google.com/iam-admin/quotas"


class GoogleError(TunelineError):
    """Google Cloud refused or failed; the subclasses say how."""

    code = "TL800"


class Quota(GoogleError):
    """The project may not have as much as was asked for.

    Attributes:
        metric, limit, usage: As Google tells them, '' where it does not.
    """

    code = "TL801"

    def __init__(self, message: str, *, metric: str = "", limit: str = "", usage: str = "", **parts: Any) -> None:
        super().__init__(message, **parts)
        self.metric, self.limit, self.usage = metric, limit, usage


class Stockout(GoogleError):
    """The zone has no such machine to give now, or the reservation has none left."""

    code = "TL802"


class Permission(GoogleError):
    """The caller may not do this, or the API is off in this project."""

    code = "TL803"


class Conflict(GoogleError):
    """The name is taken, or what is there differs in something that cannot be changed."""

    code = "TL804"


class NotReady(GoogleError):
    """Another operation is in progress on the same thing, or the thing is not ready yet: waiting helps.

    Attributes:
        operation: Id of the operation in progress, '' where Google does not tell it.
    """

    code = "TL805"

    def __init__(self, message: str, *, operation: str = "", **parts: Any) -> None:
        super().__init__(message, **parts)
        self.operation = operation


class NotFound(GoogleError):
    """There is no such thing."""

    code = "TL806"


class Unavailable(GoogleError):
    """Google did not answer, or asked to come back later.

    Attributes:
        ambiguous: The request may have been carried out: re-read before sending it again.
    """

    code = "TL807"

    def __init__(self, message: str, *, ambiguous: bool = False, **parts: Any) -> None:
        super().__init__(message, **parts)
        self.ambiguous = ambiguous


class WaitedTooLong(GoogleError):
    """Not done when its deadline passed."""

    code = "TL808"


class Refused(GoogleError):
    """The request itself is wrong, or the operation failed for a reason of its own."""

    code = "TL809"


class InUse(NotReady):
    """It cannot be deleted yet: something still uses it."""

    code = "TL810"


class Changed(NotReady):
    """Somebody changed it between our read and our write (etag)."""

    code = "TL811"


class ReservationMismatch(Conflict):
    """The reservation does not exist here, or does not fit the machine, the zone or the number of nodes."""

    code = "TL812"


_IN_PROGRESS = re.compile(r"(operation-[\w-]+)")
_PERMISSION = re.compile(
    r"[Pp]ermission[^'\"\w]*['\"]([\w.]+)['\"]|['\"]([a-z]+\.[\w.]+)['\"] permission|permission(?:s)? ([a-z]+\.[a-zA-Z]+\.[\w.]+)"
)
_STOCKOUT = ("STOCKOUT", "RESOURCE_POOL_EXHAUSTED", "VM_MIN_COUNT_NOT_REACHED")
_STOCKOUT_TEXT = ("does not have enough resources available", "gce_stockout", "resource_pool_exhausted", "currently unavailable in the")
_RATE = ("rate_limit_exceeded", "ratelimitexceeded", "userratelimitexceeded", "rate limit", "per minute", "too many requests")
_CONCURRENT = ("concurrent operation", "concurrent node pool", "operations in progress", "operation_quota", "too many operations")
_BUSY = (
    "cluster_already_has_operation",
    "incompatible operation",
    "resourcenotready",
    "resource_not_ready",
    "is not ready",
    "already being",
)
_IN_USE = (
    "resourceinusebyanotherresource",
    "resource_in_use_by_another_resource",
    "being used by",
    "still using this connection",
    "already in use",
)


def translate(error: Any, what: str = "") -> GoogleError:
    """The typed error of a client's exception, or of a failed container, compute, Lustre or service networking operation.

    Args:
        what: What was being done ("create cluster tuneline"), for the message.
    """
    if isinstance(error, GoogleError):
        return error
    return classify(fault_of(error), what)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Every raw exception inside leaves as its typed error."""
    try:
        yield
    except TunelineError:
        raise
    except Exception as error:
        raise translate(error, what) from error


def classify(fault: Fault, what: str = "") -> GoogleError:
    """The typed error of a fault (reference: reasons first, then HTTP status, then text, because 403 and 429 each mean several things)."""
    fault = fault if fault.quota else replace(fault, quota=quota_in(fault.message))
    parts: dict[str, Any] = {"asked": what, "found": fault.message}
    text = " ".join((*fault.reasons, fault.message)).lower()
    reasons = [reason.upper() for reason in fault.reasons]

    if any(word in reason for reason in reasons for word in _STOCKOUT) or any(word in text for word in _STOCKOUT_TEXT):
        return Stockout(
            f"no capacity: {_first_line(fault.message)}",
            **parts,
            next_move="try another zone (infra_zone) or gpu_provisioning, or wait; nothing was kept running",
        )
    if fault.lost:
        return Unavailable(
            f"no answer from Google: {_first_line(fault.message)}", ambiguous=True, **parts, next_move="run again; it resumes"
        )
    if fault.status == 429 or "RATE_LIMIT_EXCEEDED" in reasons or (fault.status == 403 and any(word in text for word in _RATE)):
        return _exhausted(fault, text, parts)
    if any(word in text for word in _CONCURRENT) and fault.status in (400, 403, 409):
        return Unavailable("Google runs no more operations at once", **parts, next_move="wait; it is tried again")
    if "quota" in text and (fault.quota or fault.status in (0, 400, 403) or "QUOTA_EXCEEDED" in reasons):
        return _quota(fault, parts)
    if "reservation" in text and fault.status in (0, 400, 404, 409, 412):
        return ReservationMismatch(
            f"the reservation cannot be used: {_first_line(fault.message)}",
            **parts,
            next_move="check gpu_reservation: name or block, zone (infra_zone), machine type (gpu_machine) and count (gpu_nodes)",
        )
    if any(word in text for word in _IN_USE) and fault.status != 404:
        return InUse(f"still in use: {_first_line(fault.message)}", **parts, next_move="delete what uses it, or wait until that is gone")
    if any(word in text for word in _BUSY) and fault.status not in (403, 404):
        found = _IN_PROGRESS.search(fault.message)
        return NotReady(
            f"busy: {_first_line(fault.message)}",
            operation=found.group(1) if found else "",
            **parts,
            next_move="wait for the operation in progress and run again",
        )
    return _by_status(fault, parts)


def _by_status(fault: Fault, parts: dict[str, Any]) -> GoogleError:
    line, reasons = _first_line(fault.message), [reason.upper() for reason in fault.reasons]
    if fault.status in (401, 403):
        return _permission(fault, parts)
    if fault.status == 404:
        return NotFound(f"not found: {line}", **parts, next_move="check the name, the project and the location")
    if fault.status == 412 or "ABORTED" in reasons:
        return Changed(f"changed meanwhile: {line}", **parts, next_move="run again; it is read anew")
    if fault.status == 409:
        return Conflict(f"the name is taken: {line}", **parts, next_move="choose another name, or remove what has it")
    if fault.status in (408, 499) or fault.status >= 500:
        return Unavailable(
            f"Google failed for now ({fault.status}): {line}", ambiguous=True, **parts, next_move="run again; it resumes where it was"
        )
    return Refused(f"Google refused: {line}", **parts, next_move="correct what the message names")


def _exhausted(fault: Fault, text: str, parts: dict[str, Any]) -> GoogleError:
    if "reservation" in text and "operation" not in text:
        return ReservationMismatch(
            f"the reservation is too small: {_first_line(fault.message)}", **parts, next_move="lower gpu_nodes or enlarge the reservation"
        )
    rate = any(word in text for word in (*_RATE, *_CONCURRENT))
    if not rate and (("quota" in text and "metric" not in text) or fault.quota):
        return _quota(fault, parts)
    return Unavailable(f"too many requests or operations: {_first_line(fault.message)}", **parts, next_move="wait; it is tried again")


def _quota(fault: Fault, parts: dict[str, Any]) -> Quota:
    metric, limit, usage = (fault.quota.get(key, "") for key in ("metric", "limit", "usage"))
    told = ", ".join(f"{name} {value}" for name, value in (("metric", metric), ("limit", limit), ("usage", usage)) if value)
    return Quota(
        f"quota exceeded ({told})" if told else f"quota exceeded: {_first_line(fault.message)}",
        metric=metric,
        limit=limit,
        usage=usage,
        **parts,
        next_move=f"ask for more {metric or 'quota'} at {QUOTA_PAGE}, or ask for fewer nodes or another region",
    )


def _permission(fault: Fault, parts: dict[str, Any]) -> Permission:
    reasons = {reason.upper() for reason in fault.reasons}
    if reasons & {"SERVICE_DISABLED", "ACCESSNOTCONFIGURED"} or "has not been used in project" in fault.message:
        return Permission(
            f"the API is off in this project: {_first_line(fault.message)}", **parts, next_move="enable it: gcloud services enable NAME"
        )
    found = _PERMISSION.search(fault.message)
    name = next((group for group in found.groups() if group), "") if found else ""
    return Permission(
        f"not allowed{f' (needs {name})' if name else ''}: {_first_line(fault.message)}",
        **parts,
        next_move=f"grant the account a role that holds {name or 'the permission'}, or set infra_account_* to one that has it",
    )


def _first_line(message: str) -> str:
    line = message.strip().splitlines()[0] if message.strip() else "no message"
    return line if len(line) <= 300 else line[:297] + "..."
