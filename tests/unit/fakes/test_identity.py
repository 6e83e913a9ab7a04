"""Secrets, enabled services, projects, and tokens by impersonation."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.auth import exceptions as auth
from google.auth import impersonated_credentials
from google.cloud import compute_v1, resourcemanager_v3, secretmanager_v1, service_usage_v1

from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import PROJECT, Clients, until

NETWORK_ACCOUNT = "network@demo.iam.gserviceaccount.com"


def test_secrets_by_version_and_latest(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.secretmanager.put("hf", b"old")
    fakes.secretmanager.put("hf", b"new")
    client = clients.rest(secretmanager_v1.SecretManagerServiceClient)
    name = f"projects/{PROJECT}/secrets/hf/versions"
    assert client.access_secret_version(name=f"{name}/latest").payload.data == b"new"
    assert client.access_secret_version(name=f"{name}/1").payload.data == b"old"
    fakes.secretmanager.put("hf", None)
    with pytest.raises(exceptions.BadRequest, match="DISABLED"):
        client.access_secret_version(name=f"{name}/latest")
    with pytest.raises(exceptions.NotFound):
        client.access_secret_version(name=f"projects/{PROJECT}/secrets/other/versions/latest")


def test_an_api_answers_only_once_it_is_enabled(fakes: GoogleFakes, clients: Clients) -> None:
    fakes.projects[PROJECT].enabled = {"serviceusage.googleapis.com"}
    networks = clients.compute(compute_v1.NetworksClient)
    with pytest.raises(exceptions.Forbidden) as caught:
        networks.list(project=PROJECT)
    assert caught.value.reason == "SERVICE_DISABLED"
    usage = clients.rest(service_usage_v1.ServiceUsageClient)
    names = ["compute.googleapis.com", "container.googleapis.com"]
    operation = usage.batch_enable_services({"parent": f"projects/{PROJECT}", "service_ids": names})
    until(fakes, lambda: usage.get_service({"name": f"projects/{PROJECT}/services/{names[0]}"}).state == service_usage_v1.State.ENABLED)
    assert [item.name.rpartition("/")[2] for item in operation.result(timeout=1).services] == names
    assert [item.name for item in networks.list(project=PROJECT)] == ["default"]
    listed = usage.list_services({"parent": f"projects/{PROJECT}", "filter": "state:ENABLED"})
    assert len(list(listed)) == 3
    with pytest.raises(exceptions.BadRequest, match="Between 1 and 20"):
        usage.batch_enable_services({"parent": f"projects/{PROJECT}", "service_ids": ["a.googleapis.com"] * 21})


def test_a_project_has_a_number_and_permissions(fakes: GoogleFakes, clients: Clients) -> None:
    client = clients.rest(resourcemanager_v3.ProjectsClient)
    assert client.get_project(name=f"projects/{PROJECT}").name == "projects/123456789012"
    with pytest.raises(exceptions.Forbidden):
        client.get_project(name="projects/other")
    assert clients.discovered("cloudresourcemanager", "v1").projects().get(projectId=PROJECT).execute()["projectNumber"] == "123456789012"
    fakes.cloudresourcemanager.denied.add(("", "lustre.instances.create"))
    wanted = ["compute.networks.create", "lustre.instances.create"]
    granted = client.test_iam_permissions(resource=f"projects/{PROJECT}", permissions=wanted).permissions
    assert list(granted) == ["compute.networks.create"]


def impersonate(fakes: GoogleFakes, email: str) -> impersonated_credentials.Credentials:
    endpoint = f"{fakes.endpoints['iamcredentials']}/v1/projects/-/serviceAccounts/{email}:generateAccessToken"
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return impersonated_credentials.Credentials(fakes.credentials(), email, scopes, iam_endpoint_override=endpoint)


def test_calls_are_logged_under_the_impersonated_account(fakes: GoogleFakes) -> None:
    fakes.tokens.required = True
    Clients(fakes, impersonate(fakes, NETWORK_ACCOUNT)).network()
    callers = {call.method: call.caller for call in fakes.calls}
    assert callers["compute.networks.insert"] == NETWORK_ACCOUNT
    assert callers["iamcredentials.projects.serviceAccounts.generateAccessToken"] == "runner@demo.iam.gserviceaccount.com"
    with pytest.raises(auth.InvalidOperation, match="Anonymous credentials cannot be refreshed"):
        Clients(fakes).network("other")
    assert fakes.calls[-1].status == 401


def test_who_may_not_impersonate_gets_no_token(fakes: GoogleFakes) -> None:
    fakes.iamcredentials.denied.add(NETWORK_ACCOUNT)
    with pytest.raises(auth.RefreshError, match=r"iam\.serviceAccounts\.getAccessToken"):
        Clients(fakes, impersonate(fakes, NETWORK_ACCOUNT)).network()


def test_a_token_ends_after_an_hour_and_the_client_fetches_another(fakes: GoogleFakes) -> None:
    credentials = fakes.credentials()
    clients = Clients(fakes, credentials)
    clients.network("one")
    fakes.clock.advance(3600)
    clients.network("two")
    assert credentials.refreshes >= 2
    assert 401 in [call.status for call in fakes.calls]
    assert fakes.leftovers() == [f"projects/{PROJECT}/global/networks/{name}" for name in ("one", "two")]
