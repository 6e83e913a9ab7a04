from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tuneline.lineage.graph import ancestors, circle, copies, joined, without_twins
from tuneline.lineage.model import Artifact, Event, Execution, Graph


def artifact(name: str) -> Artifact:
    """`x` has a digest of its own, `x?` none; `x=y` is a copy of y's content under its own uri."""
    uri, _, same = name.partition("=")
    return Artifact("hf", "/" + uri.rstrip("?"), "" if name.endswith("?") else ((same or uri).encode().hex() * 64)[:64])


def graph(tasks: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> Graph:
    """Tasks by name: what they read, what they wrote."""
    names = {name for read, wrote in tasks.values() for name in (*read, *wrote)}
    executions = {task: Execution("tl1", task, 1) for task in tasks}
    events = [Event(executions[task].id, artifact(name).id, "input", name) for task, (read, _) in tasks.items() for name in read]
    events += [Event(executions[task].id, artifact(name).id, "output", name) for task, (_, wrote) in tasks.items() for name in wrote]
    return Graph(
        {artifact(name).id: artifact(name) for name in sorted(names)}, {item.id: item for item in executions.values()}, tuple(events)
    )


def up(found: Graph, name: str) -> list[str]:
    return [item.uri for item in ancestors(found, artifact(name).id).values()]


def test_ancestors_nearest_first_and_not_what_comes_after() -> None:
    found = graph({"train": (["base", "data"], ["step"]), "convert": (["step"], ["model"]), "register": (["model"], ["entry"])})
    assert up(found, "model") == ["/step", "/base", "/data"]
    assert up(found, "base") == up(found, "unknown") == []


def test_copies_stand_in_for_what_nobody_is_known_to_have_written() -> None:
    found = graph({"train": (["base"], ["step"]), "convert": (["moved=step"], ["model"])})
    assert up(found, "model") == ["/moved", "/step", "/base"]
    assert copies(found, artifact("moved=step").id) == [artifact("step")]
    assert copies(found, artifact("step").id) == copies(found, artifact("base").id) == []


@pytest.mark.parametrize(
    ("tasks", "wanted"),
    [
        ({"train": (["base"], ["step"]), "convert": (["step"], ["model"])}, []),
        ({"evaluate": (["model"], ["model"])}, []),
        ({"there": (["one"], ["other"]), "back": (["other"], ["one"]), "after": (["one"], ["end"])}, ["back", "there"]),
        ({"before": ([], ["one"]), "a": (["one", "z"], ["x"]), "b": (["x"], ["y"]), "c": (["y"], ["z"])}, ["a", "b", "c"]),
    ],
)
def test_circles_are_found_but_not_what_only_leads_to_or_from_them(
    tasks: Mapping[str, tuple[Sequence[str], Sequence[str]]], wanted: list[str]
) -> None:
    found = [key.split("/")[1] for key in circle(graph(tasks))]
    assert sorted(found) == wanted
    if wanted:
        start = found.index(min(found))
        assert found[start:] + found[:start] == (["a", "b", "c"] if "a" in wanted else ["back", "there"])


def test_an_artifact_recorded_before_it_was_digested_is_one_with_the_digested_one() -> None:
    found = without_twins(graph({"train": (["base"], ["step?"]), "convert": (["step"], ["model"])}))
    assert up(found, "model") == ["/step", "/base"]
    assert artifact("step?").id not in found.artifacts


def test_one_place_with_two_contents_is_not_merged() -> None:
    parts = graph({"train": (["base"], ["step?"]), "convert": (["step"], ["model"])})
    other = Artifact("hf", "/step", "f" * 64)
    found = without_twins(joined(parts, Graph({other.id: other})))
    assert {artifact("step?").id, artifact("step").id, other.id} < set(found.artifacts)


def test_joined_keeps_what_the_first_graph_says() -> None:
    one, other = Artifact("hf", "/x", "", {"lineage_run": "1"}), Artifact("hf", "/x", "", {"lineage_run": "2"})
    assert joined(Graph({one.id: one}), Graph({other.id: other})).artifacts == {one.id: one}
