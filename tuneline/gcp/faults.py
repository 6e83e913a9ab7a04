"""One form for every way in which Google's clients tell of a failure: exceptions of four libraries, errors of four kinds of operation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: google.rpc.Code -> HTTP status, for operations, which carry only the former. UNKNOWN and INTERNAL are left out: an operation that
#: ended so has failed for good, unlike a request that was answered 500.
HTTP_OF_RPC = {1: 499, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 400, 14: 503, 16: 401}
_RPC_ABORTED = 10
INTERNAL = 13

_PASSING = re.compile(r"\bcode\W+5\d\d\b")
#: What REST clients put before Google's own words.
_REQUEST = re.compile(r"^(?:GET|POST|PUT|PATCH|DELETE) https?://\S+: ")
_QUOTA_PATTERNS = (
    # GKE: resource "CPUS": request requires '36.0' and is short '12.0'. project has a quota of '24.0' with '0.0' available
    re.compile(r"resource \"(?P<metric>[^\"]+)\".*?quota of '(?P<limit>[\d.]+)' with '(?P<available>[\d.]+)' available", re.S),
    # Compute Engine: Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.
    re.compile(r"Quota '(?P<metric>[^']+)' exceeded\.\s+Limit: (?P<limit>[\d.]+)(?P<where> [\w -]+)?"),
)


@dataclass(frozen=True)
class Fault:
    """A failure as Google told it.

    Attributes:
        status: HTTP status, 0 where none is known.
        reasons: Machine-readable reasons: of ErrorInfo, of compute errors, of node pool conditions.
        quota: metric, limit, usage as far as told.
        lost: The answer did not arrive (time-out, connection lost), so the request may have been carried out.
    """

    status: int
    message: str
    reasons: tuple[str, ...] = ()
    quota: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False


def fault_of(error: Any) -> Fault:
    """The fault that an exception or a failed operation tells of."""
    return _of_exception(error) if isinstance(error, BaseException) else _of_operation(error)


def _of_exception(error: BaseException) -> Fault:
    module = type(error).__module__
    if module.startswith("google.api_core"):
        return _of_api_core(error)
    if module.startswith("googleapiclient"):
        return _of_discovery(error)
    if module.startswith("google.auth"):
        return _of_auth(error)
    # requests, urllib3, http.client, sockets: nothing came back.
    return Fault(0, f"{type(error).__name__}: {error}", lost=True)


def _of_api_core(error: Any) -> Fault:
    if type(error).__name__ == "RetryError":
        return Fault(0, str(error), lost=True)
    reasons = [text for text in (getattr(error, "reason", None), type(error).__name__.upper()) if text]
    quota: dict[str, str] = {}
    details = [item for item in getattr(error, "details", None) or () if isinstance(item, dict)]
    for item in [*(getattr(error, "errors", None) or ()), *details]:
        if isinstance(item, dict):
            reasons += [str(item[key]) for key in ("reason", "code") if item.get(key)]
            quota.update(_quota_detail(item.get("metadata") or item.get("quotaInfo") or {}))
    message = _REQUEST.sub("", str(getattr(error, "message", "") or error))
    return Fault(int(getattr(error, "code", None) or 0), message, tuple(reasons), quota)


def _of_discovery(error: Any) -> Fault:
    status = int(getattr(getattr(error, "resp", None), "status", 0) or 0)
    try:
        body = json.loads(error.content)["error"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return Fault(status, str(error))
    reasons = [str(body.get("status", ""))]
    for item in (*body.get("errors", ()), *body.get("details", ())):
        reasons.append(str(item.get("reason", "")))
    return Fault(status, str(body.get("message", error)), tuple(filter(None, reasons)))


def _of_auth(error: BaseException) -> Fault:
    # Impersonation wraps the answer of IAM Credentials, a passing 503 like a lasting 403, into one kind of error.
    if type(error).__name__ == "TransportError" or getattr(error, "retryable", False) or _PASSING.search(str(error)):
        return Fault(0, str(error), lost=True)
    return Fault(401, f"no usable credentials: {error}", (type(error).__name__,))


def _of_operation(operation: Any) -> Fault:
    if isinstance(operation, Mapping):  # service networking: JSON of google.longrunning.Operation
        error = operation.get("error", operation)
        return _of_rpc(int(error.get("code", 0)), str(error.get("message", "")))
    if hasattr(operation, "nodepool_conditions"):
        return _of_container(operation)
    if hasattr(operation, "http_error_status_code") or hasattr(operation, "errors"):
        return _of_compute(operation)
    error = getattr(operation, "error", operation)
    return _of_rpc(int(getattr(error, "code", 0)), str(getattr(error, "message", error)))


def _of_rpc(code: int, message: str, reasons: Iterable[str] = ()) -> Fault:
    aborted = ("ABORTED",) if code == _RPC_ABORTED else ()
    return Fault(HTTP_OF_RPC.get(code, 0), message, (*aborted, *reasons))


def _of_container(operation: Any) -> Fault:
    conditions = [*operation.cluster_conditions, *operation.nodepool_conditions]
    reasons = [getattr(condition.code, "name", str(condition.code)) for condition in conditions]
    message = operation.error.message or operation.status_message or "; ".join(condition.message for condition in conditions)
    return _of_rpc(int(operation.error.code), message, [reason for reason in reasons if reason not in ("UNKNOWN", "0")])


def _of_compute(operation: Any) -> Fault:
    errors = list(getattr(operation, "error", operation).errors)
    quota: dict[str, str] = {}
    for error in errors:
        for detail in error.error_details:
            info = detail.quota_info
            if info.metric_name:
                where = ", ".join(f"{key} {value}" for key, value in sorted(info.dimensions.items()))
                quota.update(metric=info.metric_name, limit=f"{info.limit:g}{f' in {where}' if where else ''}")
    message = "; ".join(error.message or error.code for error in errors) or getattr(operation, "http_error_message", "")
    return Fault(int(getattr(operation, "http_error_status_code", 0) or 0), message, tuple(error.code for error in errors), quota)


def _quota_detail(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for ours, theirs in (("metric", ("quota_metric", "metricName")), ("limit", ("quota_limit_value", "limit"))):
        for name in theirs:
            if found.get(name) not in (None, ""):
                yield ours, str(found[name])


def quota_in(message: str) -> dict[str, str]:
    """Metric, limit and usage as far as a message tells them."""
    for pattern in _QUOTA_PATTERNS:
        if found := pattern.search(message):
            parts = found.groupdict()
            quota = {"metric": parts["metric"], "limit": parts["limit"] + (parts.get("where") or "")}
            if parts.get("available"):
                quota["usage"] = f"{float(parts['limit']) - float(parts['available']):g}"
            return quota
    return {}
