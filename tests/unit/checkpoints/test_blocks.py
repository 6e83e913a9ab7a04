import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints import crc
from tuneline.checkpoints.blocks import Blocks, ChunkSums, in_order
from tuneline.checkpoints.tensors import F64, Chunk, DType, Tensor
from tuneline.core.errors import CheckpointError

I32 = DType("int32", "I32", 4)


class Bytes:
    name = "__0_0.distcp"

    def __init__(self, data):
        self.data = data
        self.size = len(data)

    def read_into(self, offset, out):
        assert offset + len(out) <= self.size
        out[:] = self.data[offset : offset + len(out)]


def chunked(array, boxes, damaged=False):
    """A tensor whose chunks lie one after another in one blob, 3 bytes before each."""
    data, places = b"", []
    for offsets, sizes in boxes:
        part = np.ascontiguousarray(array[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]).tobytes()
        data += b"xyz"
        places.append((offsets, sizes, len(data), zlib.crc32(part)))
        data += part
    blob = Bytes(data[:-1] + bytes([data[-1] ^ damaged]))
    dtype = F64 if array.dtype == np.float64 else I32
    return Tensor("t", dtype, array.shape, tuple(Chunk(tuple(o), tuple(s), blob, at, crc32) for o, s, at, crc32 in places))


@st.composite
def cases(draw):
    shape = draw(st.lists(st.integers(1, 7), max_size=4))
    array = np.arange(int(np.prod(shape)), dtype=draw(st.sampled_from([np.float64, np.int32]))).reshape(shape)
    boxes = [([0] * len(shape), list(shape))]
    for _ in range(draw(st.integers(0, 4))):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, max(0, len(shape) - 1)))
        if not shape or sizes[axis] < 2:
            boxes.append((offsets, sizes))
            continue
        cut = draw(st.integers(1, sizes[axis] - 1))
        boxes.append((offsets, [*sizes[:axis], cut, *sizes[axis + 1 :]]))
        boxes.append(([*offsets[:axis], offsets[axis] + cut, *offsets[axis + 1 :]], [*sizes[:axis], sizes[axis] - cut, *sizes[axis + 1 :]]))
    return array, draw(st.permutations(boxes)), draw(st.integers(1, 300))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_blocks_put_any_chunks_together(case):
    array, boxes, block_bytes = case
    tensor = chunked(array, boxes)
    blocks, sums, whole = Blocks(tensor, block_bytes), ChunkSums(), b""
    for block in blocks:
        data, pieces = blocks.read(block)
        assert len(data) <= max(block_bytes, tensor.dtype.size)
        sums.add(tensor, pieces)
        whole += data.tobytes()
    assert whole == array.tobytes()


@settings(max_examples=50, deadline=None)
@given(cases())
def test_a_damaged_byte_is_found_whatever_the_blocks(case):
    array, boxes, block_bytes = case
    tensor = chunked(array, boxes, damaged=True)
    blocks, sums = Blocks(tensor, block_bytes), ChunkSums()
    read = [blocks.read(block)[1] for block in blocks]
    with pytest.raises(CheckpointError, match="are damaged"):
        [sums.add(tensor, pieces) for pieces in read]


def test_an_empty_tensor_has_no_blocks():
    assert list(Blocks(Tensor("t", F64, (3, 0), ()))) == []


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_sums_of_parts_make_the_sum_of_the_whole(first, second):
    assert crc.combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_results_come_in_order_and_only_so_many_wait():
    started = []

    def work(number):
        started.append(number)
        return number * number

    with ThreadPoolExecutor(3) as pool:
        results = in_order(pool, work, range(100), 5)
        assert next(results) == 0
        assert len(started) <= 5
        assert list(results) == [n * n for n in range(1, 100)]


def test_an_error_stops_what_waits():
    def work(number):
        if number == 3:
            raise CheckpointError("three")
        return number

    with ThreadPoolExecutor(2) as pool, pytest.raises(CheckpointError, match="three"):
        list(in_order(pool, work, range(10**9), 4))
