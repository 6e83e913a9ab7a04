import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints import cover
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.tensors import F32, Chunk, Tensor
from tuneline.core.errors import CheckpointError


class Nowhere:
    name, size = "__0_0.distcp", 0

    def read_into(self, offset, out):
        raise AssertionError("a proof reads nothing")


def tensor(shape, boxes):
    return Tensor("t", F32, tuple(shape), tuple(Chunk(tuple(o), tuple(s), Nowhere(), 0) for o, s in boxes), "origin")


@st.composite
def meshes(draw):
    """A shape and the boxes of a grid that cuts it."""
    shape = draw(st.lists(st.integers(1, 12), min_size=0, max_size=3))
    cuts = [sorted({0, extent, *draw(st.lists(st.integers(0, extent), max_size=3))}) for extent in shape]
    spans = [[(a, b - a) for a, b in itertools.pairwise(edges)] for edges in cuts]
    boxes = [([o for o, _ in box], [s for _, s in box]) for box in itertools.product(*spans)]
    return shape, draw(st.permutations(boxes))


@settings(max_examples=150, deadline=None)
@given(meshes())
def test_a_mesh_covers(mesh):
    check_cover(tensor(*mesh))


@settings(max_examples=150, deadline=None)
@given(meshes(), st.data())
def test_a_missing_chunk_is_a_hole_and_a_doubled_one_an_overlap(mesh, data):
    shape, boxes = mesh
    index = data.draw(st.integers(0, len(boxes) - 1))
    with pytest.raises(CheckpointError, match="not whole"):
        check_cover(tensor(shape, boxes[:index] + boxes[index + 1 :]))
    with pytest.raises(CheckpointError, match="overlap"):
        check_cover(tensor(shape, [*boxes, boxes[index]]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=5))
def test_any_boxes_are_judged_as_by_counting(boxes):
    shape = (4, 4)
    counts = np.zeros(shape, int)
    for r, c, h, w in boxes:
        counts[r : r + h, c : c + w] += 1
    right = bool((counts == 1).all()) and all(r + h <= 4 and c + w <= 4 for r, c, h, w in boxes)
    subject = tensor(shape, [((r, c), (h, w)) for r, c, h, w in boxes])
    if right:
        check_cover(subject)
    else:
        with pytest.raises(CheckpointError):
            check_cover(subject)


def test_irregular_tilings_are_proved_too():
    pinwheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
    check_cover(tensor((3, 3), pinwheel))


def test_a_byte_count_is_not_enough():
    with pytest.raises(CheckpointError, match="overlap"):
        check_cover(tensor((4,), [((0,), (3,)), ((2,), (1,))]))


def test_the_hole_is_named():
    with pytest.raises(CheckpointError) as caught:
        check_cover(tensor((6, 4), [((0, 0), (3, 4)), ((3, 0), (3, 2))]))
    assert "nothing at [3, 2] of [6, 4]" in caught.value.found


def test_empty_tensors_and_empty_chunks_need_nothing():
    check_cover(tensor((0, 4), []))
    check_cover(tensor((2,), [((0,), (2,)), ((2,), (0,))]))


@pytest.mark.parametrize("box", [((0,), (5,)), ((4,), (1,)), ((0, 0), (4, 1)), ((), ())])
def test_a_chunk_outside_is_refused(box):
    with pytest.raises(CheckpointError, match="outside the tensor"):
        check_cover(tensor((4,), [box]))


def test_a_pattern_that_no_mesh_writes_is_bounded(monkeypatch):
    monkeypatch.setattr(cover, "MAX_CELLS", 8)
    with pytest.raises(CheckpointError, match="irregular"):
        check_cover(tensor((9, 9), [((i, i), (1, 1)) for i in range(9)]))
