import hashlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.files import FileSink, StreamSink, open_file
from tuneline.checkpoints.safetensors import Item, plan_shards, read_header
from tuneline.checkpoints.tensors import BF16, F32, Chunk, Tensor
from tuneline.checkpoints.writer import Differ, Writer
from tuneline.core.errors import CheckpointError


class Memory:
    """A blob in memory that remembers what was announced and what was fetched."""

    name = "memory"
    version = "1"

    def __init__(self, data):
        self.data = np.frombuffer(data, np.uint8)
        self.size = len(data)
        self.expected, self.fetched = [], []

    def read_into(self, offset, out):
        out[:] = self.data[offset : offset + len(out)].data

    def fetch(self, offset, length, room):
        self.fetched.append((offset, length))
        memory = room.take(length)
        memory[:] = self.data[offset : offset + length]
        return memory

    def expect(self, offset, length):
        self.expected.append((offset, length))


class Sink:
    def __init__(self, size, sequential=False, fail_at=None):
        self.sequential = sequential
        self.data = bytearray(size)
        self.starts = []
        self.state = "open"
        self.fail_at = fail_at

    def write(self, start, data):
        assert self.state == "open"
        if start == self.fail_at:
            raise OSError(28, "No space left on device")
        self.starts.append(start)
        self.data[start : start + len(data)] = data.tobytes()

    def close(self):
        self.state = "closed"

    def abort(self):
        self.state = "aborted"


def model(sizes, seed=0):
    """Float32 tensors in one blob, each of one chunk."""
    random = np.random.default_rng(seed)
    data = random.standard_normal(sum(sizes)).astype(np.float32).tobytes()
    blob, at, tensors = Memory(data), 0, {}
    for number, size in enumerate(sizes):
        tensors[f"t{number:03d}"] = Tensor(f"t{number:03d}", F32, (size,), (Chunk((0,), (size,), blob, at),))
        at += 4 * size
    return tensors, blob


def write(tensors, *, shard_bytes=1 << 40, dtype=F32, sequential=False, **arguments):
    shards = plan_shards([Item(tensor.name, dtype, tensor.shape) for tensor in tensors.values()], shard_bytes)
    sinks, digests = {}, {}

    def open_sink(shard):
        sinks[shard.file] = Sink(shard.nbytes, sequential)
        return sinks[shard.file]

    Writer(tensors, open_sink, lambda digest: digests.update({digest.path: digest}), window_bytes=4096, **arguments).write(shards)
    return shards, sinks, digests


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9000), min_size=1, max_size=12),
    threads=st.integers(1, 9),
    shard_bytes=st.sampled_from([1, 40_000, 1 << 40]),
    sequential=st.booleans(),
)
def test_files_are_header_and_tensors_whatever_the_threads(sizes, threads, shard_bytes, sequential):
    tensors, blob = model(sizes)
    shards, sinks, digests = write(tensors, threads=threads, shard_bytes=shard_bytes, sequential=sequential)
    for shard in shards:
        expected = shard.header
        for item in shard.items:
            (chunk,) = tensors[item.name].chunks
            expected += blob.data[chunk.start : chunk.start + item.nbytes].tobytes()
        sink = sinks[shard.file]
        assert bytes(sink.data) == expected
        assert sink.state == "closed"
        assert (digests[shard.file].sha256, digests[shard.file].size) == (hashlib.sha256(expected).hexdigest(), shard.nbytes)
        assert sorted(sink.starts) == list(range(0, shard.nbytes, 4096)), "every window once"
        assert not sequential or sink.starts == sorted(sink.starts)
    assert sorted(blob.expected) == sorted(blob.fetched), "what was announced is what was read"


def test_source_bytes_are_announced_so_far_ahead_and_no_further(monkeypatch):
    tensors, blob = model([1000] * 50)
    ahead = []
    original = blob.fetch

    def fetch(offset, length, room):
        ahead.append(sum(length for _, length in blob.expected) - offset)
        return original(offset, length, room)

    monkeypatch.setattr(blob, "fetch", fetch)
    write(tensors, threads=1, ahead_bytes=20_000)
    assert 16_000 < max(ahead) <= 32_000


def test_a_cast_that_widens_fills_more_windows_than_it_reads():
    tensors, _ = model([50_000])
    half = {name: Tensor(name, BF16, (100_000,), tensor.chunks) for name, tensor in tensors.items()}
    chunk = half["t000"].chunks[0]
    half["t000"] = Tensor("t000", BF16, (100_000,), (Chunk((0,), (100_000,), chunk.blob, 0),))
    shards, sinks, _ = write(half, threads=3, dtype=F32)
    words = chunk.blob.data.view(np.uint16)
    content = np.frombuffer(bytes(sinks["model.safetensors"].data)[len(shards[0].header) :], np.uint32)
    assert np.array_equal(content, words.astype(np.uint32) << 16)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_error_stops_everything_and_no_file_stays(threads):
    tensors, _ = model([20_000] * 6)
    shards = plan_shards([Item(name, F32, tensor.shape) for name, tensor in tensors.items()], 80_000)
    sinks = [Sink(shard.nbytes, fail_at=40_960 if number == 1 else None) for number, shard in enumerate(shards)]
    waiting = iter(sinks)
    done = []
    before = threading.active_count()
    with pytest.raises(OSError, match="No space"):
        Writer(tensors, lambda shard: next(waiting), done.append, threads=threads, window_bytes=4096).write(shards)
    assert threading.active_count() == before
    assert sinks[1].state == "aborted"
    assert all(sink.state == "closed" for sink in sinks[: len(done)] if sink is not sinks[1])
    assert len(done) < len(shards)


def test_twins_are_compared_while_their_tensor_is_written():
    tensors, _ = model([30_000])
    other, _ = model([30_000])
    write(tensors, threads=2, twins={"t000": other["t000"]})
    changed, _ = model([30_000])
    last = changed["t000"].chunks[0].blob
    last.data = last.data.copy()
    last.data[-1] ^= 1
    with pytest.raises(Differ, match="t000"):
        write(tensors, threads=2, twins={"t000": changed["t000"]})


@pytest.mark.parametrize("size", [10, 4096, 3 << 20, (3 << 20) + 5])
@pytest.mark.parametrize("kind", ["direct", "cached", "stream"])
def test_files_on_a_disk(tmp_path, size, kind):
    path = tmp_path / "file"
    content = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    sink = StreamSink(path) if kind == "stream" else FileSink(path, size, direct=kind == "direct")
    room = Room()
    for start in range(0, size, 1 << 20):
        part = content[start : start + (1 << 20)]
        memory = room.take(len(part))
        memory[:] = part
        sink.write(start, memory)
    sink.close()
    assert path.read_bytes() == content.tobytes()


def test_an_aborted_file_is_gone_and_a_file_that_is_there_stays(tmp_path):
    sink = open_file(tmp_path / "file", 100_000)
    sink.abort()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        open_file(tmp_path / "file", 100_000)
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_what_is_written_is_a_safetensors_file(tmp_path):
    tensors, _ = model([5000, 7, 0])
    shards = plan_shards([Item(name, F32, tensor.shape) for name, tensor in tensors.items()], 1 << 40)
    Writer(tensors, lambda shard: open_file(tmp_path / shard.file, shard.nbytes), lambda digest: None, threads=2).write(shards)
    assert {name: entry.shape for name, entry in read_header(FileBlob(tmp_path / "model.safetensors"))[0].items()} == {
        "t000": (5000,),
        "t001": (7,),
        "t002": (0,),
    }


def test_a_malformed_source_is_an_error_of_the_checkpoint(monkeypatch):
    tensors, blob = model([5000])

    def fetch(offset, length, room):
        raise CheckpointError("gone")

    monkeypatch.setattr(blob, "fetch", fetch)
    with pytest.raises(CheckpointError, match="gone"):
        write(tensors, threads=3)
