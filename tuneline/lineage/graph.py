"""Questions to a graph that no store answers: ancestors, circles, and two records of one thing."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tuneline.lineage.model import Artifact, Graph


def joined(*graphs: Graph) -> Graph:
    """One graph of several; where two know a node, the first one's counts."""
    return Graph(
        {key: item for graph in reversed(graphs) for key, item in graph.artifacts.items()},
        {key: item for graph in reversed(graphs) for key, item in graph.executions.items()},
        tuple(dict.fromkeys(event for graph in graphs for event in graph.events)),
    )


def without_twins(graph: Graph) -> Graph:
    """The graph in which an artifact without a digest is the one of the same kind and uri that has one, where there is just one."""
    named: dict[tuple[str, str], set[str]] = {}
    for item in graph.artifacts.values():
        if item.digest:
            named.setdefault((item.kind, item.uri), set()).add(item.id)
    same = {
        item.id: next(iter(named[item.kind, item.uri]))
        for item in graph.artifacts.values()
        if not item.digest and len(named.get((item.kind, item.uri), ())) == 1
    }
    events = tuple(dict.fromkeys(replace(event, artifact=same.get(event.artifact, event.artifact)) for event in graph.events))
    return replace(graph, artifacts={key: item for key, item in graph.artifacts.items() if key not in same}, events=events)


def copies(graph: Graph, artifact: str) -> list[Artifact]:
    """Where no execution is known that wrote an artifact: those of the same kind and content that one did write."""
    item = graph.artifacts[artifact]
    if not item.digest or graph.producers(artifact):
        return []
    equal = (other for other in graph.artifacts.values() if (other.kind, other.digest) == (item.kind, item.digest))
    return [other for other in equal if graph.producers(other.id)]


def ancestors(graph: Graph, artifact: str) -> dict[str, Artifact]:
    """Everything that an artifact was made from, by id; copies stand in for what nobody is known to have written."""
    seen: dict[str, Artifact] = {}
    waiting = deque([artifact] if artifact in graph.artifacts else [])
    while waiting:
        key = waiting.popleft()
        before = [item for execution in graph.producers(key) for item in graph.inputs(execution.id)] or copies(graph, key)
        for item in before:
            if item.id not in seen and item.id != artifact:
                seen[item.id] = item
                waiting.append(item.id)
    return seen


def circle(graph: Graph) -> list[str]:
    """Executions that feed themselves in a circle, [] where none do. One that only writes what it reads does not count."""
    after = {key: _readers(graph, key) for key in graph.executions}
    before = dict.fromkeys(after, 0)
    for others in after.values():
        for other in others:
            before[other] += 1
    free = deque(key for key, count in before.items() if not count)
    while free:
        key = free.popleft()
        del before[key]
        for other in after[key] & before.keys():
            before[other] -= 1
            if not before[other]:
                free.append(other)
    # What is left lies on a circle or after one: going back from it ends in the circle.
    back: dict[str, str] = {other: key for key in before for other in after[key] & before.keys()}
    path: list[str] = []
    key = next(iter(before), "")
    while key and key not in path:
        path.append(key)
        key = back[key]
    return path[path.index(key) :][::-1] if path else []


def _readers(graph: Graph, execution: str) -> set[str]:
    read = {item.id for item in graph.inputs(execution)}
    written = [item.id for item in graph.outputs(execution) if item.id not in read]
    return {reader.id for key in written for reader in graph.consumers(key)}
