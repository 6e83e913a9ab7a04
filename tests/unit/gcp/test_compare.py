"""Asked against found, and whose a thing is."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1, container_v1

from tests.unit.gcp.conftest import OTHER
from tuneline.gcp.compare import as_json, check_found, differences
from tuneline.gcp.errors import Conflict
from tuneline.gcp.ownership import Mark, marks, owner

URL = "https://www.googleapis.com/compute/v1/projects/123/global/networks/n"


@pytest.mark.parametrize(
    ("asked", "found", "paths"),
    [
        ({"mtu": 8896}, {"mtu": 8896, "more": 1}, []),
        ({"mtu": 8896}, {"mtu": 1460}, ["mtu"]),
        ({"mtu": 8896}, {}, ["mtu"]),
        ({"auto": False}, {}, []),
        ({"network": "projects/p/global/networks/n"}, {"network": URL}, []),
        ({"network": "projects/p/global/networks/n"}, {"network": "n"}, []),
        ({"network": "projects/p/global/networks/n"}, {"network": "m"}, ["network"]),
        ({"range": "192.168.0.0/24"}, {"range": "192.168.1.0/24"}, ["range"]),
        ({"scopes": ["a"]}, {"scopes": ["b", "a"]}, []),
        ({"scopes": ["a", "c"]}, {"scopes": ["a"]}, ["scopes"]),
        ({"nics": [{"n": "a"}, {"n": "b"}]}, {"nics": [{"n": "a", "x": 1}, {"n": "c"}]}, ["nics[1].n"]),
        ({"nics": [{"n": "a"}]}, {"nics": [{"n": "a"}, {"n": "b"}]}, ["nics"]),
        ({"labels": {"tuneline-expires": "1", "a": "1"}, "description": "x"}, {"labels": {"tuneline-expires": "2", "a": "1"}}, []),
    ],
)
def test_differences(asked: dict[str, Any], found: dict[str, Any], paths: list[str]) -> None:
    assert [line.split(":")[0] for line in differences(asked, found)] == paths


def test_only_looks_below_its_prefixes() -> None:
    asked, found = {"a": {"b": 1, "c": 1}, "ab": 1}, {"a": {"b": 2, "c": 2}, "ab": 2}
    assert [line.split(":")[0] for line in differences(asked, found, only=["a.b", "ab"])] == ["a.b", "ab"]


def test_json_has_the_names_of_the_rest_api() -> None:
    body = compute_v1.Firewall(name="f", allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["988"])])
    assert as_json(body) == {"name": "f", "allowed": [{"IPProtocol": "tcp", "ports": ["988"]}]}
    assert as_json(container_v1.Cluster(release_channel={"channel": "RAPID"})) == {"releaseChannel": {"channel": "RAPID"}}


@pytest.mark.parametrize(
    "resource",
    [
        lambda mark: compute_v1.Network(description=mark.description),
        lambda mark: compute_v1.Address(labels=mark.labels),
        lambda mark: container_v1.Cluster(resource_labels=mark.labels),
        lambda mark: container_v1.NodePool(config={"resource_labels": mark.labels}),
        lambda mark: {"labels": mark.labels},
    ],
)
def test_marks_are_found_where_each_api_has_room_for_them(resource: Any, mark: Mark) -> None:
    made = resource(mark)
    assert mark.made(made)
    assert not OTHER.made(made)
    assert mark.run in owner(made)


@pytest.mark.parametrize("text", ["", "made by hand", "{broken", "[1]", '{"other": 1}'])
def test_no_mark_is_no_mark(text: str) -> None:
    assert marks(compute_v1.Network(description=text)) == {}


def test_labels_fit_google(mark: Mark) -> None:
    import re

    assert all(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) for key in mark.labels)
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", value) for value in mark.labels.values())


def network(mark: Mark | None, **fields: Any) -> compute_v1.Network:
    return compute_v1.Network(name="n", description=mark.description if mark else "", **{"mtu": 8896, **fields})


def test_own_must_be_all_that_was_asked(mark: Mark) -> None:
    assert check_found("n", network(mark), network(mark), mark=mark, must=()) is True
    with pytest.raises(Conflict, match="mtu: asked 8896, found 1460"):
        check_found("n", network(mark), network(mark, mtu=1460), mark=mark, must=())


def test_anothers_is_adopted_if_what_matters_agrees(mark: Mark) -> None:
    for other in (OTHER, None):
        assert check_found("n", network(mark), network(other, mtu=1460), mark=mark, must=("name",)) is False
        with pytest.raises(Conflict, match="mtu: asked 8896, found 1460"):
            check_found("n", network(mark), network(other, mtu=1460), mark=mark, must=("mtu",))


def test_another_managers_is_refused(mark: Mark) -> None:
    theirs = compute_v1.Address(labels={"managed-by": "terraform"})
    with pytest.raises(Conflict, match="belongs to somebody else") as caught:
        check_found("a", compute_v1.Address(), theirs, mark=mark, must=())
    assert "managed-by=terraform" in caught.value.found
