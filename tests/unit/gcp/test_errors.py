"""Every raw failure becomes its typed error, with the figures and the next move."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import compute_v1, container_v1
from google.rpc import code_pb2, status_pb2
from googleapiclient.errors import HttpError
from httplib2 import Response

from tuneline.gcp import errors
from tuneline.gcp.errors import translate

QUOTA_TEXT = (
    "Insufficient regional quota to satisfy request: resource \"NVIDIA_B200_GPUS\": request requires '16.0' and is short '8.0'. "
    "project has a quota of '24.0' with '8.0' available. View and manage quotas at https://console.cloud.google.com/x."
)
BUSY_TEXT = "Cluster is running incompatible operation operation-1700000000000-aaaa."


def http_error(status: int, body: Any) -> HttpError:
    return HttpError(Response({"status": status}), json.dumps(body).encode())


def container_operation(code: int, message: str, condition: str = "") -> container_v1.Operation:
    conditions = [container_v1.StatusCondition(code=condition, message=message)] if condition else []
    return container_v1.Operation(status="DONE", error=status_pb2.Status(code=code, message=message), nodepool_conditions=conditions)


def compute_operation(code: str, message: str, status: int = 0, **detail: Any) -> compute_v1.Operation:
    error = compute_v1.Errors(code=code, message=message, error_details=[detail] if detail else [])
    return compute_v1.Operation(error=compute_v1.Error(errors=[error]), http_error_status_code=status)


QUOTA_DETAIL = {"quota_info": {"metric_name": "compute.googleapis.com/networks", "limit": 5, "dimensions": {"region": "us-central1"}}}
STOCK_TEXT = "The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request."
SERVICE_OFF = {
    "error": {
        "code": 403,
        "message": "Service Networking API has not been used in project 1 before or it is disabled.",
        "status": "PERMISSION_DENIED",
        "details": [{"reason": "SERVICE_DISABLED"}],
    }
}
IN_USE = {
    "error": {
        "code": 400,
        "message": "Failed to delete connection; Producer services (e.g. CloudSQL) are still using this connection.",
        "status": "FAILED_PRECONDITION",
    }
}

# (raw error, class, what the text must hold)
TABLE: list[tuple[Any, type[errors.GoogleError], list[str]]] = [
    (api.Forbidden(QUOTA_TEXT), errors.Quota, ["NVIDIA_B200_GPUS", "limit 24.0", "usage 16", errors.QUOTA_PAGE]),
    (api.PermissionDenied(QUOTA_TEXT), errors.Quota, ["limit 24.0"]),
    (compute_operation("QUOTA_EXCEEDED", "Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."), errors.Quota, ["NETWORKS", "5.0 globally"]),
    (compute_operation("QUOTA_EXCEEDED", "Over.", 403, **QUOTA_DETAIL), errors.Quota, ["compute.googleapis.com/networks", "5 in region"]),
    (container_operation(code_pb2.RESOURCE_EXHAUSTED, "Not all instances running in IGM.", "GCE_QUOTA_EXCEEDED"), errors.Quota, []),
    (
        container_operation(code_pb2.RESOURCE_EXHAUSTED, "Not all instances running in IGM.", "GCE_STOCKOUT"),
        errors.Stockout,
        ["infra_zone"],
    ),
    (compute_operation("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", STOCK_TEXT), errors.Stockout, ["no capacity"]),
    (api.ResourceExhausted(STOCK_TEXT), errors.Stockout, []),
    (api.Forbidden("Required 'compute.networks.create' permission for 'projects/p'"), errors.Permission, ["needs compute.networks.create"]),
    (api.PermissionDenied('Permission "container.clusters.create" denied'), errors.Permission, []),
    (api.Forbidden("Missing permission container.clusters.get on it"), errors.Permission, ["container.clusters.get"]),
    (http_error(403, SERVICE_OFF), errors.Permission, ["is off", "services enable"]),
    (auth.RefreshError("unable to acquire impersonated credentials"), errors.Permission, ["no usable credentials"]),
    (auth.DefaultCredentialsError("none"), errors.Permission, []),
    (auth.TransportError("connection reset"), errors.Unavailable, []),
    (api.AlreadyExists("Already exists: projects/p/clusters/c."), errors.Conflict, ["name is taken"]),
    (api.Conflict("The resource 'x' already exists"), errors.Conflict, ["choose another name"]),
    (api.Aborted("etag mismatch"), errors.Changed, []),
    (api.PreconditionFailed("At least one of the pre-conditions you specified did not hold."), errors.Changed, []),
    (api.FailedPrecondition(BUSY_TEXT), errors.NotReady, ["busy"]),
    (api.BadRequest(BUSY_TEXT), errors.NotReady, []),
    (api.BadRequest("The resource 'networks/n' is not ready"), errors.NotReady, []),
    (api.BadRequest("The network resource 'n' is already being used by 'firewalls/f'"), errors.InUse, ["still in use"]),
    (http_error(400, IN_USE), errors.InUse, []),
    ({"error": {"code": 9, "message": "Producer services are still using this connection."}}, errors.InUse, []),
    (api.NotFound("Not found: projects/p/clusters/c"), errors.NotFound, []),
    (api.NotFound("reservation 'r' not found"), errors.ReservationMismatch, ["gpu_reservation"]),
    (api.ResourceExhausted("Reservation does not have enough resources for the request"), errors.ReservationMismatch, ["gpu_nodes"]),
    (api.TooManyRequests("Too many operations: hits the concurrent operations quota 5"), errors.Unavailable, ["tried again"]),
    (api.Forbidden("Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"), errors.Unavailable, []),
    (api.ServiceUnavailable("try later"), errors.Unavailable, ["503"]),
    (api.InternalServerError("oops"), errors.Unavailable, ["500"]),
    (api.RetryError("deadline", cause=ValueError()), errors.Unavailable, []),
    (requests.exceptions.ReadTimeout("read timed out"), errors.Unavailable, ["ReadTimeout"]),
    (ConnectionResetError("reset"), errors.Unavailable, []),
    (api.InvalidArgument("Invalid value for field name"), errors.Refused, []),
    (container_operation(code_pb2.INTERNAL, "Internal error."), errors.Refused, []),
    (status_pb2.Status(code=code_pb2.PERMISSION_DENIED, message="no"), errors.Permission, []),
]


@pytest.mark.parametrize(("raw", "kind", "wanted"), TABLE)
def test_table(raw: Any, kind: type[errors.GoogleError], wanted: list[str]) -> None:
    error = translate(raw, "make it")
    assert type(error) is kind
    text = str(error)
    assert [part for part in [*wanted, f"[{kind.code}]", "next: ", "asked: make it"] if part not in text] == []


def test_codes_are_stable_and_distinct() -> None:
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.GoogleError)]
    codes = {kind.code: kind.__name__ for kind in kinds}
    assert len(codes) == len(kinds)
    assert all(code.startswith("TL8") for code in codes)


def test_quota_carries_its_figures() -> None:
    error = translate(api.Forbidden(QUOTA_TEXT))
    assert isinstance(error, errors.Quota)
    assert (error.metric, error.limit, error.usage) == ("NVIDIA_B200_GPUS", "24.0", "16")


def test_busy_names_the_operation() -> None:
    error = translate(api.FailedPrecondition(BUSY_TEXT))
    assert isinstance(error, errors.NotReady)
    assert error.operation == "operation-1700000000000-aaaa"


@pytest.mark.parametrize(
    ("raw", "ambiguous"),
    [
        (api.ServiceUnavailable("x"), True),
        (requests.exceptions.ConnectTimeout("x"), True),
        (api.TooManyRequests("too many requests"), False),
    ],
)
def test_only_what_may_have_been_carried_out_is_ambiguous(raw: Exception, ambiguous: bool) -> None:
    error = translate(raw)
    assert isinstance(error, errors.Unavailable)
    assert error.ambiguous is ambiguous


def test_translated_lets_typed_errors_through_and_chains_raw_ones() -> None:
    with pytest.raises(errors.Quota), errors.translated("x"):
        raise errors.Quota("mine")
    with pytest.raises(errors.NotFound) as caught, errors.translated("x"):
        raise api.NotFound("gone")
    assert isinstance(caught.value.__cause__, api.NotFound)
