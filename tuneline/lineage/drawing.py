"""The graph of an audit as an SVG: layers from left to right, artifacts as boxes, executions as pills, every node a link to its row."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tuneline.lineage.findings import AuditResult, NodeState
from tuneline.lineage.graph import copies
from tuneline.lineage.model import Graph, State

#: Nodes that are drawn, nearest to the subject first; the tables hold all.
MAX_NODES = 150

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 168, 62, 44, 24, 16

#: Mark and style class of a state: never told by colour alone.
MARKS: Mapping[str, tuple[str, str]] = {
    NodeState.VERIFIED: ("✓", "good"),
    NodeState.MISMATCH: ("✗", "bad"),
    NodeState.MISSING: ("?", "open"),
    NodeState.UNVERIFIED: ("·", "open"),
    NodeState.NOTHING: ("·", "plain"),
    State.COMPLETE: ("✓", "plain"),
    State.CACHED: ("↺", "cached"),
    State.FAILED: ("✗", "open"),
    State.RUNNING: ("…", "open"),
}


@dataclass(frozen=True)
class Box:
    """A drawn node: three lines, the style class, whether it is an execution, what the pointer shows."""

    lines: tuple[str, str, str]
    style: str
    pill: bool
    title: str


def draw(result: AuditResult) -> str:
    """The SVG element; '' where there is no graph."""
    boxes = _boxes(result)
    edges, dashed = _edges(result.graph)
    kept = _nearest(result.subject, boxes, edges)
    edges = [(one, other) for one, other in edges if one in kept and other in kept]
    if not kept:
        return ""
    columns, chains = _layers([key for key in boxes if key in kept], edges)
    places = _places(columns)
    width = 2 * _MARGIN + len(columns) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + max(len(column) for column in columns) * (_HEIGHT + _GAP_Y) - _GAP_Y
    lines = [_line(chain, places, dashed=(chain[0], chain[-1]) in dashed) for chain in chains]
    nodes = [_node(key, boxes[key], places[key], key == result.subject) for column in columns for key in column if key in boxes]
    left_out = len(boxes) - len(kept)
    note = f"<p>{left_out} more nodes are in the tables below.</p>" if left_out else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group"'
        f' aria-label="Lineage graph: {len(kept)} nodes, made from left to right">{"".join(lines)}{"".join(nodes)}</svg>{note}'
    )


def _boxes(result: AuditResult) -> dict[str, Box]:
    boxes = {}
    for key, artifact in result.graph.artifacts.items():
        state = result.nodes[key].state if key in result.nodes else NodeState.UNVERIFIED
        mark, style = MARKS[state]
        digest = artifact.digest[:8] or "no digest"
        lines = (artifact.kind, _short(artifact.uri.rsplit("/", 1)[-1]), f"{mark} {state.lower()} · {digest}")
        boxes[key] = Box(lines, style, False, f"{artifact.kind} {artifact.uri}\nsha256:{artifact.digest or '-'}\n{state}")
    for key, execution in result.graph.executions.items():
        mark, style = MARKS[execution.state]
        lines = (execution.task, _short(execution.run_id), f"{mark} {execution.state.lower()} · attempt {execution.attempt}")
        boxes[key] = Box(lines, style, True, f"{execution.id}\n{execution.state}")
    return boxes


def _short(text: str) -> str:
    return text if len(text) <= 23 else f"{text[:10]}…{text[-12:]}"


def _edges(graph: Graph) -> tuple[list[tuple[str, str]], set[tuple[str, str]]]:
    """Edges in the direction of making, and those of them that only join copies of the same content."""
    edges = [
        (event.artifact, event.execution) if event.direction == "input" else (event.execution, event.artifact) for event in graph.events
    ]
    dashed = [(other.id, key) for key in graph.artifacts for other in copies(graph, key)]
    return list(dict.fromkeys([*edges, *dashed])), set(dashed)


def _nearest(subject: str, boxes: Mapping[str, Box], edges: Sequence[tuple[str, str]]) -> set[str]:
    beside: dict[str, list[str]] = {}
    for one, other in edges:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    kept: dict[str, None] = {}
    waiting = deque([subject, *boxes])
    while waiting and len(kept) < MAX_NODES:
        key = waiting.popleft()
        if key in boxes and key not in kept:
            kept[key] = None
            waiting.extendleft(reversed([other for other in beside.get(key, ()) if other not in kept]))
    return set(kept)


def _layers(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Columns of nodes by longest path, ordered against crossings; and for each edge its way through the columns.

    Long edges get a stand-in in every column that they cross, named `edge|column`, so that they go between boxes and not through them.
    """
    rank = _ranks(keys, edges)
    columns: list[list[str]] = [[] for _ in range(max(rank.values()) + 1)]
    for key in keys:
        columns[rank[key]].append(key)
    chains = []
    for number, (one, other) in enumerate(edges):
        low, high = sorted((rank[one], rank[other]))
        between = [f"{number}|{index}" for index in range(low + 1, high)]
        for index, name in enumerate(between, low + 1):
            columns[index].append(name)
        chains.append([one, *(between if rank[one] <= rank[other] else between[::-1]), other])
    beside: dict[str, list[str]] = {}
    for chain in chains:
        for one, other in pairwise(chain):
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
    for sweep in range(6):
        ordered = columns if sweep % 2 == 0 else columns[::-1]
        for before, column in pairwise(ordered):
            _order(column, before, beside)
    return columns, chains


def _order(column: list[str], neighbours: Sequence[str], beside: Mapping[str, Sequence[str]]) -> None:
    """Sort a column by the middle of what each node is joined to in the column beside it; the rest keep their height."""
    height = {key: (index + 0.5) / len(neighbours) for index, key in enumerate(neighbours)}
    wanted = {}
    for index, key in enumerate(column):
        heights = [height[other] for other in beside.get(key, ()) if other in height]
        wanted[key] = sum(heights) / len(heights) if heights else (index + 0.5) / len(column)
    column.sort(key=wanted.__getitem__)


def _ranks(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest path to each node; edges that would close a circle do not count. A source stands just before its first reader."""
    after: dict[str, list[str]] = {key: [] for key in keys}
    before: dict[str, set[str]] = {key: set() for key in keys}
    for one, other in edges:
        after[one].append(other)
        before[other].add(one)
    left = {key: len(items) for key, items in before.items()}
    rank = dict.fromkeys(keys, 0)
    free = deque(key for key in keys if not left[key])
    done: set[str] = set()
    while len(done) < len(keys):
        if not free:
            # Only circles are left: open one at its earliest node.
            free.append(min((key for key in keys if key not in done), key=lambda key: (left[key], keys.index(key))))
        key = free.popleft()
        if key in done:
            continue
        done.add(key)
        for other in after[key]:
            if other in done:
                continue
            rank[other] = max(rank[other], rank[key] + 1)
            left[other] -= 1
            if left[other] <= 0:
                free.append(other)
    for key in keys:
        if not before[key] and after[key]:
            rank[key] = max(0, min(rank[other] for other in after[key]) - 1)
    lowest = min(rank.values())
    return {key: value - lowest for key, value in rank.items()}


def _places(columns: Sequence[Sequence[str]]) -> dict[str, tuple[float, float]]:
    tallest = max(len(column) for column in columns)
    places: dict[str, tuple[float, float]] = {}
    for index, column in enumerate(columns):
        top = _MARGIN + (tallest - len(column)) * (_HEIGHT + _GAP_Y) / 2
        for row, key in enumerate(column):
            places[key] = (_MARGIN + index * (_WIDTH + _GAP_X), top + row * (_HEIGHT + _GAP_Y))
    return places


def _line(chain: Sequence[str], places: Mapping[str, tuple[float, float]], *, dashed: bool) -> str:
    path = ""
    for one, other in pairwise(chain):
        x1, y1, x2, y2 = places[one][0] + _WIDTH, places[one][1] + _HEIGHT / 2, places[other][0], places[other][1] + _HEIGHT / 2
        bend = max(_GAP_X / 2, abs(x2 - x1) / 2)
        path += f"M{places[one][0]:g} {y1:g}H{x1:g}" if "|" in one else f"M{x1:g} {y1:g}"
        path += f"C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    x, y = places[chain[-1]][0], places[chain[-1]][1] + _HEIGHT / 2
    return f'<path class="edge{" copy" if dashed else ""}" d="{path}"/><path class="tip" d="M{x:g} {y:g}l-7 -4v8z"/>'


def _node(key: str, box: Box, place: tuple[float, float], is_subject: bool) -> str:
    x, y = place
    radius = _HEIGHT / 2 if box.pill else 6
    first, *rest = box.lines
    texts = f'<text x="{x + _WIDTH / 2:g}" y="{y + 19:g}" class="head">{escape(first)}</text>'
    texts += "".join(f'<text x="{x + _WIDTH / 2:g}" y="{y + 36 + 15 * row:g}">{escape(line)}</text>' for row, line in enumerate(rest))
    return (
        f'<a href="#{anchor(key)}" class="{box.style}{" subject" if is_subject else ""}"><title>{escape(box.title)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius:g}"/>{texts}</a>'
    )


def anchor(key: str) -> str:
    """The id of a node's row in the report."""
    return "n-" + "".join(character if character.isascii() and character.isalnum() else f"_{ord(character):x}" for character in key)
