"""Secrets, services, the project's number, and the accounts that are impersonated."""

from __future__ import annotations

import pytest

from tests.fakes.google import GoogleFakes
from tuneline.gcp import compute
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import NotFound, Permission
from tuneline.gcp.projects import project_number
from tuneline.gcp.secrets import get_secret
from tuneline.gcp.services import ensure_services, missing_services

NETWORK_ACCOUNT = "net@demo.iam.gserviceaccount.com"


def test_a_secret_by_name_and_by_path(fakes: GoogleFakes, google: Google) -> None:
    fakes.secretmanager.put("hf-token", b"hf_1")
    assert get_secret(google, "hf-token") == get_secret(google, "projects/demo/secrets/hf-token") == "hf_1"
    fakes.secretmanager.put("hf-token", b"hf_2")
    assert (get_secret(google, "hf-token"), get_secret(google, "hf-token", "1")) == ("hf_2", "hf_1")


def test_a_secret_that_is_not_there(google: Google) -> None:
    with pytest.raises(NotFound, match="hf-token"):
        get_secret(google, "hf-token")


def test_project_number(google: Google) -> None:
    assert project_number(google) == "123456789012"


def test_services_are_switched_on_once(fakes: GoogleFakes, google: Google) -> None:
    fakes.projects["demo"].enabled = {"compute.googleapis.com", "serviceusage.googleapis.com"}
    wanted = [f"{name}.googleapis.com" for name in ("container", "compute", "lustre")]
    assert missing_services(google, wanted, number="123456789012") == ["container.googleapis.com", "lustre.googleapis.com"]
    assert ensure_services(google, wanted, number="123456789012") == ["container.googleapis.com", "lustre.googleapis.com"]
    assert ensure_services(google, wanted, number="123456789012") == []


def test_an_api_that_is_off_is_told(fakes: GoogleFakes, google: Google) -> None:
    fakes.projects["demo"].enabled = set()
    with pytest.raises(Permission, match="is off in this project"):
        compute.get(google, compute.NETWORK, "default")


def test_each_concern_calls_as_its_account(fakes: GoogleFakes) -> None:
    fakes.tokens.required = True
    google = Google(
        "demo", accounts={"network": NETWORK_ACCOUNT}, endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock
    )
    compute.get(google, compute.NETWORK, "default")
    google.clusters.list_clusters(parent="projects/demo/locations/-")
    callers = {call.method: call.caller for call in fakes.calls}
    assert callers["compute.networks.get"] == NETWORK_ACCOUNT
    assert callers["container.projects.locations.clusters.list"] == "runner@demo.iam.gserviceaccount.com"


def test_a_passing_failure_of_impersonation_is_waited_out(fakes: GoogleFakes) -> None:
    fakes.fail("iamcredentials.*", 503, times=3)
    google = Google(
        "demo", accounts={"network": NETWORK_ACCOUNT}, endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock
    )
    assert compute.get(google, compute.NETWORK, "default") is not None
    assert fakes.unmet() == []


def test_an_account_that_may_not_be_impersonated_is_a_permission_error(fakes: GoogleFakes) -> None:
    fakes.iamcredentials.denied.add(NETWORK_ACCOUNT)
    google = Google(
        "demo", accounts={"network": NETWORK_ACCOUNT}, endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock
    )
    with pytest.raises(Permission, match=r"getAccessToken|impersonat"):
        compute.get(google, compute.NETWORK, "default")
