import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints.ranges import GAP_BYTES, Ranges

SIZE = 1 << 20
CONTENT = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


class Far:
    def __init__(self):
        self.reads = []
        self.lock = threading.Lock()

    def download(self, offset, out):
        with self.lock:
            self.reads.append((offset, len(out)))
        out[:] = CONTENT[offset : offset + len(out)].data


@pytest.fixture
def ranges():
    made = []

    def make(**arguments):
        made.append(Ranges(**arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_neighbours_are_read_together(ranges):
    source, many = Far(), ranges(range_bytes=4000)
    for at in range(0, 10_000, 1000):
        many.expect(source, at, 1000)
    for at in range(0, 10_000, 1000):
        assert np.array_equal(many.fetch(source, at, 1000), CONTENT[at : at + 1000])
    assert sorted(source.reads) == [(0, 4000), (4000, 4000), (8000, 2000)]


def test_rows_of_reads_side_by_side_are_merged_each(ranges):
    source, many = Far(), ranges(range_bytes=4000)
    for at in range(0, 4000, 1000):
        for place in (0, 600_000):
            many.expect(source, place + at, 1000)
    for at in range(0, 4000, 1000):
        for place in (0, 600_000):
            assert np.array_equal(many.fetch(source, place + at, 1000), CONTENT[place + at : place + at + 1000])
    assert sorted(source.reads) == [(0, 4000), (600_000, 4000)]


def test_small_gaps_are_read_along_and_large_ones_are_not(ranges):
    source, many = Far(), ranges()
    for at in (0, 2000, 3000 + GAP_BYTES + 1):
        many.expect(source, at, 1000)
    for at in (0, 2000, 3000 + GAP_BYTES + 1):
        many.fetch(source, at, 1000)
    assert sorted(source.reads) == [(0, 3000), (3000 + GAP_BYTES + 1, 1000)]


def test_what_nobody_expected_is_not_there(ranges):
    source, many = Far(), ranges()
    assert many.fetch(source, 0, 10) is None
    many.expect(source, 0, 10)
    assert many.fetch(source, 5, 10) is None
    assert many.fetch(source, 0, 10) is not None
    assert many.fetch(source, 0, 10) is None, "each is used once"


def test_the_budget_holds_back_what_is_not_needed_yet(ranges):
    source, many = Far(), ranges(range_bytes=1000, budget_bytes=2500, connections=1)
    for at in range(0, 10_000, 1000):
        many.expect(source, at, 1000)
    assert many._held <= 2500
    for at in range(0, 10_000, 1000):
        many.fetch(source, at, 1000)
        assert many._held <= 3500
    assert many._held == 0


def test_an_error_reaches_whoever_waits(ranges):
    class Gone(Far):
        def download(self, offset, out):
            raise OSError("gone")

    source, many = Gone(), ranges()
    many.expect(source, 0, 10)
    with pytest.raises(OSError, match="gone"):
        many.fetch(source, 0, 10)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SIZE - 5000), st.integers(1, 5000)), max_size=40), st.integers(1, 9000), st.integers(1, 20_000))
def test_any_reads_give_the_right_bytes_in_any_order_and_memory(reads, range_bytes, budget):
    source, many = Far(), Ranges(range_bytes=range_bytes, budget_bytes=budget, connections=2)
    try:
        for at, length in reads:
            many.expect(source, at, length)
        for at, length in reversed(reads):
            data = many.fetch(source, at, length)
            assert data is None or np.array_equal(data, CONTENT[at : at + length])
    finally:
        many.close()
