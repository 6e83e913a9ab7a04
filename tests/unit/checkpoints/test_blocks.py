import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints import crc
from tuneline.checkpoints.blocks import Blocks, ChunkSums
from tuneline.checkpoints.casts import cast
from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.tensors import BF16, F64, Chunk, DType, Tensor
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

    def fetch(self, offset, length, room):
        memory = room.take(length)
        self.read_into(offset, memory.data)
        return memory

    def expect(self, offset, length):
        raise AssertionError("blocks announce nothing")


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


def assembled(tensor, block_bytes, target=None):
    """(block, its bytes, its sums) of every block."""
    target = target or tensor.dtype
    blocks = Blocks(tensor, block_bytes)
    for block in blocks:
        out = np.full(block.numel * target.size, 255, np.uint8)
        yield block, out, blocks.read(block, target, out, Room())


@settings(max_examples=120, deadline=None)
@given(cases())
def test_blocks_put_any_chunks_together(case):
    array, boxes, block_bytes = case
    tensor = chunked(array, boxes)
    sums, whole = ChunkSums(), b""
    for block, data, crcs in assembled(tensor, block_bytes):
        assert len(data) <= max(block_bytes, tensor.dtype.size)
        assert block.start * tensor.dtype.size == len(whole)
        sums.add(tensor, block, crcs)
        whole += data.tobytes()
    assert whole == array.tobytes()


@settings(max_examples=100, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_a_damaged_byte_is_found_whatever_the_blocks_and_their_order(case, random):
    array, boxes, block_bytes = case
    tensor = chunked(array, boxes, damaged=True)
    sums = ChunkSums()
    read = list(assembled(tensor, block_bytes))
    random.shuffle(read)
    with pytest.raises(CheckpointError, match="are damaged"):
        [sums.add(tensor, block, crcs) for block, _, crcs in read]


@settings(max_examples=50, deadline=None)
@given(cases())
def test_blocks_are_cast_while_they_are_put_together(case):
    array, boxes, block_bytes = case
    tensor = chunked(array.astype(np.float64), boxes)
    whole = b"".join(data.tobytes() for _, data, _ in assembled(tensor, block_bytes, BF16))
    flat = np.ascontiguousarray(array, np.float64).reshape(-1).view(np.uint8)
    assert whole == cast(flat, F64, BF16).tobytes()


def test_an_empty_tensor_has_no_blocks():
    assert list(Blocks(Tensor("t", F64, (3, 0), ()))) == []


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_sums_of_parts_make_the_sum_of_the_whole(first, second):
    assert crc.combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
