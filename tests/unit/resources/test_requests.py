"""What is rendered is what is sent: every request that changes something, field by field."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.cloud import container_v1
from google.protobuf import json_format

from tests.fakes.google import GoogleFakes
from tests.gke_specs import VALID
from tests.unit.resources.stand import NUMBER, stand
from tuneline.core.names import canonical_json
from tuneline.gcp.clients import Google
from tuneline.gcp.services import ensure_services
from tuneline.resources.requests import build_requests, services_of

EXPIRES = re.compile(r"\d{4}-\d\d-\d\dt\d\d-\d\dz")
KINDS = {"clusters.create": ("cluster", container_v1.Cluster), "nodePools.create": ("nodePool", container_v1.NodePool)}


def comparable(method: str, body: dict[str, Any]) -> str:
    """A body whose enums, which GKE's client sends as numbers, are names, and whose mark has no time in it."""
    if method in KINDS:
        field, kind = KINDS[method]
        body = {field: json_format.MessageToDict(json_format.ParseDict(body[field], kind.pb(kind())))}
    if method == "buckets.setIamPolicy":
        body = {"bindings": [item for item in body["bindings"] if "legacy" not in item["role"]]}
    if method == "services.batchEnable":
        body = {"serviceIds": sorted(body["serviceIds"])}
    text = EXPIRES.sub("EXPIRES", canonical_json(body))
    return re.sub(r"<the range that [\w-]+ got>/20|\d+\.\d+\.\d+\.\d+/20(?=\"\])", "RANGE", text)


def short(method: str) -> str:
    """`container.projects.locations.clusters.nodePools.create` as `nodePools.create`."""
    return ".".join(method.split(".")[-2:])


@pytest.mark.parametrize(("system", "how"), VALID)
def test_rendered_and_sent_are_the_same(fakes: GoogleFakes, google: Google, system: str, how: str) -> None:
    changes = {"gpu_provisioning": how, **({} if how == "reservation" else {"gpu_reservation": ""})}
    run = stand(fakes, google, system, **changes)
    fakes.projects["demo"].enabled = set()
    ensure_services(google, services_of(run.spec), number=NUMBER)
    run.everything()
    sent = [(short(call.method), call.body) for call in fakes.written() if call.service != "iamcredentials"]
    rendered = [(short(item.method), item.body) for item in build_requests(run.spec, run.run_id, NUMBER)]
    assert sorted((method, comparable(method, body)) for method, body in sent) == sorted(
        (method, comparable(method, body)) for method, body in rendered
    )
