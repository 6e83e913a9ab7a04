from __future__ import annotations

import pytest

from tuneline.core.errors import LineageError
from tuneline.lineage.model import Artifact, Event, Execution, Graph, State, registered_uri

DIGEST = "ab" * 32


def test_an_artifact_is_its_kind_uri_and_digest() -> None:
    one = Artifact("hf", "/store/hf/x/", DIGEST, {"lineage_run": "tl1"})
    assert one.id == Artifact("hf", "file:///store/hf/x", DIGEST).id
    assert len({one.id, Artifact("base", one.uri, DIGEST).id, Artifact("hf", one.uri).id, Artifact("hf", "/other", DIGEST).id}) == 4
    assert Artifact("hf", "gs://bucket/x//").uri == "gs://bucket/x"
    assert Artifact("hf", "/").uri == "/"


@pytest.mark.parametrize(
    ("kind", "uri", "digest", "told"),
    [
        ("model", "/x", "", "unknown kind"),
        ("hf", "", "", "without a uri"),
        ("hf", "/x", "AB" * 32, "no sha256"),
        ("hf", "/x", "ab", "no sha256"),
    ],
)
def test_what_is_no_artifact_is_refused(kind: str, uri: str, digest: str, told: str) -> None:
    with pytest.raises(LineageError, match=told):
        Artifact(kind, uri, digest)


def test_the_producer_that_counts_comes_first() -> None:
    made = Artifact("hf", "/x", DIGEST)
    states = [(State.COMPLETE, 1.0), (State.CACHED, 9.0), (State.COMPLETE, 2.0), (State.FAILED, 3.0)]
    executions = [Execution("tl", "convert", number, state, started) for number, (state, started) in enumerate(states, 1)]
    graph = Graph(
        {made.id: made}, {item.id: item for item in executions}, tuple(Event(item.id, made.id, "output", "model") for item in executions)
    )
    assert [item.attempt for item in graph.producers(made.id)] == [3, 1, 4, 2]
    assert graph.outputs(executions[0].id) == graph.of_kind("hf") == [made]
    assert graph.inputs(executions[0].id) == graph.consumers(made.id) == []


def test_a_registered_version_has_an_address() -> None:
    assert registered_uri("local-tiny", 3) == "tuneline:local-tiny@3"
