from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.lineage_chain import Chain
from tuneline.lineage import drawing
from tuneline.lineage.audit import audit
from tuneline.lineage.drawing import MAX_NODES, draw
from tuneline.lineage.findings import AuditResult
from tuneline.lineage.model import Artifact, Event, Execution, Graph

SVG = "{http://www.w3.org/2000/svg}"


def parsed(result: AuditResult) -> ElementTree.Element:
    return ElementTree.fromstring(re.sub(r"</svg>.*", "</svg>", draw(result)))


def boxes(svg: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Left and top of every box by its heading."""
    found = {}
    for link in svg.iter(f"{SVG}a"):
        rect, head = link.find(f"{SVG}rect"), link.find(f"{SVG}text")
        assert rect is not None
        assert head is not None
        found[str(head.text)] = (float(rect.attrib["x"]), float(rect.attrib["y"]))
    return found


def test_what_is_made_stands_right_of_what_it_was_made_from(chain: Chain) -> None:
    places = boxes(parsed(audit("local-tiny@1", store=chain.store)))
    for path in (
        ("stage_model", "base", "train", "checkpoint", "convert", "hf", "register", "registered"),
        ("stage_dataset", "dataset", "train"),
        ("base", "convert"),
    ):
        assert all(places[one][0] < places[other][0] for one, other in pairwise(path))
    assert places["stage_dataset"][0] == places["stage_model"][0] == places["stage_code"][0]


def test_boxes_lie_inside_the_picture_and_apart(chain: Chain) -> None:
    svg = parsed(audit("local-tiny@1", store=chain.store))
    places = list(boxes(svg).values())
    assert len(places) == 12
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    assert all(0 < x <= width - drawing._WIDTH and 0 < y <= height - drawing._HEIGHT for x, y in places)
    for number, (x, y) in enumerate(places):
        assert all(abs(x - a) >= drawing._WIDTH or abs(y - b) >= drawing._HEIGHT for a, b in places[:number])


def test_a_long_edge_goes_between_boxes(chain: Chain) -> None:
    """base is read by train and, four columns on, by convert."""
    svg = parsed(audit("local-tiny@1", store=chain.store))
    places = boxes(svg)
    through = [path.attrib["d"] for path in svg.iter(f"{SVG}path") if path.attrib["class"] == "edge" and path.attrib["d"].count("C") > 1]
    assert through
    for path in through:
        for x, y in re.findall(r"C[\d.]+ [\d.]+ [\d.]+ [\d.]+ ([\d.]+) ([\d.]+)M", path):
            assert all(not (a <= float(x) <= a + drawing._WIDTH and b < float(y) < b + drawing._HEIGHT) for a, b in places.values())


def test_a_state_is_told_by_mark_and_word(chain: Chain) -> None:
    (chain.path("dataset") / "train.parquet").write_bytes(b"x")
    texts = [str(text.text) for text in parsed(audit("local-tiny@1", store=chain.store)).iter(f"{SVG}text")]
    assert sum(text.startswith("✗ mismatch · ") for text in texts) == 1
    assert sum(text.startswith("✓ verified") for text in texts) == 4
    assert sum(text.startswith("✓ complete · attempt 1") for text in texts) == 6


def result(edges: list[tuple[int, int]], subject: int = 0) -> AuditResult:
    """Artifacts and executions alternate: even numbers are artifacts, odd ones executions."""
    artifacts = {number: Artifact("hf", f"/{number}") for pair in [*edges, (subject, subject)] for number in pair if number % 2 == 0}
    executions = {number: Execution("tl", f"task{number}", 1) for pair in edges for number in pair if number % 2}
    events = [
        Event(executions[other].id, artifacts[one].id, "input", "x")
        if other % 2
        else Event(executions[one].id, artifacts[other].id, "output", "x")
        for one, other in edges
    ]
    graph = Graph({item.id: item for item in artifacts.values()}, {item.id: item for item in executions.values()}, tuple(events))
    return AuditResult("x", 0.0, True, "", artifacts[subject].id, graph=graph)


edge = st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] % 2 != pair[1] % 2)


@given(st.lists(edge, max_size=30, unique=True))
def test_any_graph_can_be_drawn_also_with_circles(edges: list[tuple[int, int]]) -> None:
    drawn = draw(result(edges))
    nodes = {number for pair in [*edges, (0, 0)] for number in pair}
    assert drawn.count("<rect") == len(nodes)
    assert drawn.count('class="edge') == len(edges)
    assert drawn == draw(result(edges))


def test_a_large_graph_is_cut_around_the_subject_and_says_so() -> None:
    drawn = draw(result([(number, number + 1) for number in range(1000)], subject=500))
    assert drawn.count("<rect") == MAX_NODES
    assert f"{1001 - MAX_NODES} more nodes" in drawn
    assert drawn.count('subject"') == 1


def test_nothing_known_is_nothing_drawn() -> None:
    assert draw(AuditResult("x", 0.0, True, "")) == ""
