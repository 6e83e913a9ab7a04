"""Which client speaks to whom, as whom."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from google.auth.credentials import AnonymousCredentials

from tests.fakes.google import GoogleFakes
from tuneline.gcp.clients import ENDPOINTS_VARIABLE, Google


def test_endpoints_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS_VARIABLE, json.dumps({"container": "http://127.0.0.1:1", "compute": "http://127.0.0.1:2"}))
    google = Google("demo", endpoints={"compute": "http://127.0.0.1:3"})
    assert google.endpoints == {"container": "http://127.0.0.1:1", "compute": "http://127.0.0.1:3"}
    assert isinstance(google.credentials("cluster"), AnonymousCredentials)
    assert google.clusters.transport.kind == "rest"


@pytest.mark.parametrize("given", [{"accounts": {"billing": "a@b.c"}}, {"endpoints": {"bigquery": "http://127.0.0.1:1"}}])
def test_a_name_that_is_unknown_is_refused(given: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="unknown concern or service"):
        Google("demo", **given)  # type: ignore[arg-type]


def test_each_concern_has_its_own_account() -> None:
    endpoints = {"iamcredentials": "http://127.0.0.1:1"}
    accounts = {"network": "net@demo.iam.gserviceaccount.com", "cluster": "gke@demo.iam.gserviceaccount.com", "storage": ""}
    google = Google("demo", accounts=accounts, endpoints=endpoints)
    assert google.credentials("network").service_account_email == "net@demo.iam.gserviceaccount.com"
    assert google.credentials("cluster").service_account_email == "gke@demo.iam.gserviceaccount.com"
    assert google.credentials("network") is google.credentials("network")
    assert isinstance(google.credentials("storage"), AnonymousCredentials)


def test_a_client_is_built_once(fakes: GoogleFakes) -> None:
    google = Google("demo", endpoints=fakes.endpoints)
    assert google.clusters is google.clusters
    assert google.compute("Networks") is google.compute("Networks")


def test_no_sdk_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, tuneline.gcp.gke, tuneline.gcp.lustre, tuneline.gcp.peering, tuneline.gcp.storage, tuneline.resources.teardown, "
        "tuneline.resources.requests; print([name for name in sys.modules if name.startswith(('google.', 'googleapiclient'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"google.cloud"}, "google.cloud is made by the packages' .pth files"
