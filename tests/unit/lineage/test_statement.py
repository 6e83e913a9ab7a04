from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneline.core.errors import LineageError
from tuneline.lineage.digests import FileDigest, QuickFile, content_digest
from tuneline.lineage.statement import Dependency, Statement, build_statement, parse

FILES = (FileDigest("config.json", "1" * 64, 2), FileDigest("weights/model.safetensors", "2" * 64, 3_000_000_000))


def build(**values: Any) -> Statement:
    given: dict[str, Any] = {
        "kind": "hf", "uri": "/hf/model/", "files": FILES, "parameters": {"steps": 4, "rate": 1e-06, "force": False},
        "dependencies": (
            Dependency("base", "base", "/models/base", "3" * 64), Dependency("dataset", "dataset", "/data", "4" * 64),
            Dependency("dataset-2", "dataset", "/more", "5" * 64), Dependency("source", "git", "git+https://example.com/x", "a" * 40),
            Dependency("image", "image", "example.com/steps:tag"),
        ),
        "run_id": "tl1", "task": "convert", "attempt": 2, "started": "2026-11-30T20:00:00Z", "finished": "2026-11-30T20:01:00Z",
        "details": {"step": "4", "seed": "0"},
    }  # fmt: skip
    return build_statement(**{**given, **values})


def test_it_is_an_in_toto_statement_with_slsa_provenance() -> None:
    statement = build()
    value = json.loads(statement.to_json())
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://slsa.dev/provenance/v1"
    assert value["subject"][0] == {"name": "config.json", "digest": {"sha256": "1" * 64}, "annotations": {"size": "2"}}
    definition, run = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    assert definition["externalParameters"] == statement.parameters
    assert [item.get("digest") for item in definition["resolvedDependencies"]] == [
        {"sha256": "3" * 64}, {"sha256": "4" * 64}, {"sha256": "5" * 64}, {"gitCommit": "a" * 40}, None,
    ]  # fmt: skip
    assert run["metadata"] == {"invocationId": "tl1", "startedOn": "2026-11-30T20:00:00Z", "finishedOn": "2026-11-30T20:01:00Z"}
    assert definition["internalParameters"]["attempt"] == "2"
    assert run["byproducts"][0]["annotations"] == {"step": "4", "seed": "0"}


def test_what_is_written_is_read_back_and_its_digest_is_the_contents() -> None:
    statement = build()
    assert parse(statement.to_json(), "x") == statement
    assert statement.digest == content_digest(FILES)
    assert statement.uri == "/hf/model"


def test_the_metadata_of_an_artifact_agree_with_it() -> None:
    metadata = build().metadata(base="tiny@main", image="example.com/steps@sha256:0")
    assert metadata["lineage_digest"] == content_digest(FILES)
    assert metadata["lineage_manifest"] == "/hf/model/lineage.json"
    assert (metadata["lineage_base_sha256"], metadata["lineage_dataset_sha256"], metadata["lineage_dataset_sha256_2"]) == (
        "3" * 64,
        "4" * 64,
        "5" * 64,
    )
    assert (metadata["lineage_run"], metadata["lineage_attempt"], metadata["lineage_step"]) == ("tl1", "2", "4")
    assert "lineage_parent_sha256" not in metadata
    assert metadata["lineage_manifest_sha256"] != build(details={"step": "4", "seed": "1"}).metadata()["lineage_manifest_sha256"]


def test_a_file_may_have_a_sha256_a_crc32c_or_both() -> None:
    statement = build(quick=[QuickFile("config.json", 2, "0000000a"), QuickFile("optimizer.bin", 9, "0000000b")])
    assert [(item.path, bool(item.sha256), item.crc32c) for item in statement.subjects] == [
        ("config.json", True, "0000000a"), ("optimizer.bin", False, "0000000b"), ("weights/model.safetensors", True, ""),
    ]  # fmt: skip
    assert statement.digest == content_digest(FILES)
    quick = build(files=(), quick=[QuickFile("optimizer.bin", 9, "0000000b")])
    assert (quick.digest, quick.file_name, statement.file_name) == ("", "lineage.quick.json", "lineage.json")
    assert parse(quick.to_json(), "x") == quick


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"files": ()}, "no file"),
        ({"files": (FILES[0], FILES[0])}, "a file twice"),
        ({"files": (FileDigest("../x", "1" * 64, 1),)}, "no path of a file"),
        ({"files": (FileDigest("/x", "1" * 64, 1),)}, "no path of a file"),
        ({"files": (FileDigest("a//b", "1" * 64, 1),)}, "no path of a file"),
        ({"files": (FileDigest("lineage.json", "1" * 64, 1),)}, "no path of a file"),
        ({"files": (FileDigest("x", "short", 1),)}, "no valid digest"),
        ({"quick": [QuickFile("config.json", 3, "0000000a")]}, "changed while it was digested"),
        ({"kind": "model"}, "kind 'model' is none of"),
        ({"parameters": {"x": {1, 2}}}, "not plain JSON"),
        ({"parameters": {"x": float("nan")}}, "not plain JSON"),
        ({"details": {"step": 4}}, "4 where text must be"),
        ({"dependencies": (Dependency("base", "base", "/a"), Dependency("base", "base", "/b"))}, "dependency base twice"),
    ],
)
def test_what_no_reader_would_accept_is_not_built(values: dict[str, Any], told: str) -> None:
    with pytest.raises(LineageError) as error:
        build(**values)
    assert told in str(error.value)


@pytest.mark.parametrize("dependency", [("x", "nothing", "/x", ""), ("x", "base", "/x", "short")])
def test_a_dependency_has_a_known_kind_and_a_whole_digest(dependency: tuple[str, str, str, str]) -> None:
    with pytest.raises(LineageError, match="dependency"):
        Dependency(*dependency)


@given(st.data())
def test_no_byte_of_a_sidecar_can_be_changed_unseen(data: st.DataObject) -> None:
    """An edit is refused, or gives another statement, which has another digest and so contradicts the store."""
    statement = build()
    written = bytearray(statement.to_json())
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = parse(bytes(written), "x")
    except LineageError as error:
        assert error.found  # noqa: PT017
    else:
        assert found != statement
        assert found.metadata()["lineage_manifest_sha256"] != statement.metadata()["lineage_manifest_sha256"]


def edited(**changes: Any) -> bytes:
    value = json.loads(build().to_json())
    for path, change in changes.items():
        *steps, last = path.split("__")
        place = value
        for step in steps:
            place = place[int(step) if step.isdigit() else step]
        if change is None:
            del place[last]
        else:
            place[last] = change
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices"),
        (b"\xff", "invalid start byte"),
        (b"[" * 100_000, "recursion"),
        (build().to_json()[:-9], "Expecting"),
        (build().to_json() + b" ", "it was edited"),
        (edited(_type="https://in-toto.io/Statement/v0.1"), "_type is"),
        (edited(predicateType="https://spdx.dev/Document"), "predicateType is"),
        (edited(predicate__buildDefinition__buildType="urn:tuneline:lineage:v2"), "buildType is"),
        (edited(predicate__runDetails__metadata__invocationId=None), "no field invocationId"),
        (edited(predicate__extra="x"), "it was edited"),
        (edited(subject__0__name="../../etc/passwd"), "no path of a file"),
        (edited(subject__0__annotations__size="02"), "it was edited"),
        (edited(subject__0__annotations__size="many"), "invalid literal"),
        (edited(subject__0__name=7), "7 where text must be"),
        (edited(predicate__buildDefinition__internalParameters__kind="spell"), "kind 'spell'"),
    ],
)
def test_what_is_broken_or_foreign_is_named(data: bytes, told: str) -> None:
    with pytest.raises(LineageError, match=r"a name is no sidecar of Tuneline") as error:
        parse(data, "a name")
    assert told in error.value.found


def test_equal_statements_are_equal_bytes() -> None:
    assert build().to_json() == replace(build(), parameters=dict(reversed(list(build().parameters.items())))).to_json()
