"""What the server may change of what was applied, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from tuneline.kube.compare import differences


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {}, "b": [], "c": "", "d": None}, {}),
        ({"cpu": "0.5"}, {"cpu": "500m"}),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}),
        ({"pods": "361"}, {"pods": 361}),
        ({"size": "18000Gi"}, {"size": "18000Gi"}),
        ({"memory": "1k"}, {"memory": "1000"}),
        ([{"name": "x"}], [{"name": "x", "protocol": "TCP"}]),
    ],
)
def test_equal(wanted: Any, found: Any) -> None:
    assert differences(wanted, found) == []


@pytest.mark.parametrize(
    ("wanted", "found", "line"),
    [
        ({"spec": {"new": True}}, {"spec": {}}, ".spec.new: True is missing"),
        ({"a": [1, 2]}, {"a": [1]}, ".a: wanted 2 items, found 1"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ".a[0].b: wanted 1, found 2"),
        ({"a": {"b": 1}}, {"a": 3}, ".a: wanted a map, found 3"),
        ({"a": [1]}, {"a": "x"}, ".a: wanted 1 items, found 'x'"),
        ({"a": True}, {"a": 1}, ".a: wanted True, found 1"),
        ({"a": "1Gi"}, {"a": "1G"}, ".a: wanted '1Gi', found '1G'"),
        ({"a": "x"}, {"a": "y"}, ".a: wanted 'x', found 'y'"),
        ({"a": 0}, {}, ".a: 0 is missing"),
        ({"a": False}, {}, ".a: False is missing"),
    ],
)
def test_different(wanted: Any, found: Any, line: str) -> None:
    assert differences(wanted, found) == [line]
