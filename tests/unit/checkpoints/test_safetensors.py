import itertools
import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.safetensors import Item, index_json, plan_shards, read_header, read_tensor
from tuneline.checkpoints.tensors import DTYPES, F32
from tuneline.core.errors import CheckpointError


def header(path):
    return read_header(FileBlob(path))[0]


ITEMS = st.lists(
    st.builds(Item, st.text(min_size=1, max_size=8), st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    min_size=1,
    max_size=12,
    unique_by=lambda item: item.name,
).filter(lambda items: all(item.name != "__metadata__" for item in items))


@settings(max_examples=150, deadline=None)
@given(ITEMS, st.integers(1, 400))
def test_shards_hold_everything_once_in_order_and_below_the_limit(items, limit):
    shards = plan_shards(items, limit)
    names = [sorted(item.name for item in shard.items) for shard in shards]
    assert list(itertools.chain(*names)) == sorted(item.name for item in items)
    for shard in shards:
        assert len(shard.header) % 8 == 0
        assert shard.nbytes - len(shard.header) <= limit or len(shard.items) == 1 or not any(item.nbytes for item in shard.items[1:])
    for shard, following in itertools.pairwise(shards):
        first = min(following.items, key=lambda item: item.name)
        assert sum(item.nbytes for item in shard.items) + first.nbytes > limit


@settings(max_examples=50, deadline=None)
@given(items=ITEMS)
def test_the_format_s_own_library_reads_what_is_planned(items, tmp_path_factory):
    (shard,) = plan_shards(items, 1 << 30)
    path = tmp_path_factory.mktemp("planned") / shard.file
    path.write_bytes(shard.header + bytes(shard.nbytes - len(shard.header)))
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
        for item in items:
            tensor = opened.get_tensor(item.name)
            assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{item.dtype.name}", item.shape)
    for item in items:
        entry = header(path)[item.name]
        assert entry.start % item.dtype.size == 0


def test_names_of_files_and_the_index():
    items = [Item(name, F32, (4,)) for name in ("b", "a", "c")]
    assert [shard.file for shard in plan_shards(items, 100)] == ["model.safetensors"]
    shards = plan_shards(items, 32)
    assert [shard.file for shard in shards] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads(index_json(shards))
    assert index["metadata"] == {"total_size": 48}
    assert index["weight_map"] == {"a": shards[0].file, "b": shards[0].file, "c": shards[1].file}


def test_what_the_library_writes_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, -2], dtype=torch.bfloat16), "c": torch.tensor(True)}
    save_file(tensors, path)
    assert {name: entry.shape for name, entry in header(path).items()} == {"a": (2, 3), "b": (2,), "c": ()}
    assert read_tensor(path, "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read_tensor(path, "b").tolist() == tensors["b"].view(torch.uint16).tolist()
    assert read_tensor(path, "c").dtype == np.bool_
    with pytest.raises(CheckpointError, match="no tensor 'd'"):
        read_tensor(path, "d")


def encoded(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        encoded({"a": entry(0, 8)}, bytes(7)),
        encoded({"a": entry(0, 8)}, bytes(9)),
        encoded({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        encoded({"a": entry(0, 8), "b": entry(9, 17)}, bytes(17)),
        encoded({"a": entry(0, 9)}, bytes(9)),
        encoded({"a": entry(0, 8, (2.0,))}, bytes(8)),
        encoded({"a": entry(-8, 0)}, bytes(8)),
        encoded({"a": entry(0, 8, (-1, -2))}, bytes(8)),
        encoded({"a": entry(0, 8, dtype="F31")}, bytes(8)),
        encoded({"a": entry(0, 8, dtype=[])}, bytes(8)),
        encoded({"a": {"dtype": "F32"}}),
        encoded({"a": 5}),
        encoded([1]),
        encoded(b"[" * 100_000),
        encoded(b"\xff"),
        encoded(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
        encoded({}, length=1 << 60),
    ],
)
def test_malformed_files_are_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        header(path)
