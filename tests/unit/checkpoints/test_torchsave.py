import io
import zipfile

import pytest
import torch

from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.tensors import DTYPES
from tuneline.checkpoints.torchsave import extents, read_item
from tuneline.core.errors import CheckpointError


@pytest.fixture
def item(tmp_path):
    """Reads a torch.save archive that lies between other bytes of a file; returns what is said of it and its bytes."""

    def read(data):
        path = tmp_path / "__0_0.distcp"
        path.write_bytes(b"before" + data + b"after")
        blob = FileBlob(path)
        try:
            stored = read_item(blob, 6, len(data))
            return stored, blob.read(stored.start, blob.size - 5 - stored.start)
        finally:
            blob.close()

    return read


def saved(value):
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype_is_read(item, dtype):
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype.name))
    stored, rest = item(saved(tensor))
    assert (stored.dtype, stored.shape) == (dtype, (3, 4))
    assert rest.startswith(bytes(tensor.view(torch.uint8).flatten().tolist()))


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (2, 1, 3)])
def test_shapes_are_read(item, shape):
    assert item(saved(torch.ones(shape)))[0].shape == shape


def test_strides_of_extents_of_one_do_not_matter(item):
    assert item(saved(torch.ones(3, 1).as_strided((3, 1), (1, 7))))[0].shape == (3, 1)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(3, 2).t(), "not contiguous"),
        (torch.ones(6)[2:], "does not fill its storage"),
        (torch.ones(6)[:4], "does not fill its storage"),
        (torch.ones(1).expand(6), "does not fill its storage"),
        (torch.zeros(2, dtype=torch.complex64), "Complex"),
        ({"a": torch.ones(2)}, "holds a dict where a tensor must be"),
        (5, "holds 5 where a tensor must be"),
        (torch.nn.Linear(1, 1), "has no reason to name"),
        (torch.ones(2).to_sparse(), "has no reason to name"),
    ],
)
def test_other_values_are_refused(item, value, reason):
    with pytest.raises(CheckpointError, match=reason):
        item(saved(value))


def rezipped(data, **changes):
    """`data` with entries replaced; None removes."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = changes.get(info.filename.replace("/", "_").replace(".", "_"), old.read(info))
            if content is not None:
                new.writestr(info.filename, content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"archive_byteorder": b"big"}, "little-endian"),
        ({"archive_data_0": b"123"}, "does not fill its storage"),
        ({"archive_data_0": None}, "it has no 'archive/data/0'"),
        ({"archive_data_pkl": None}, "exactly one data.pkl"),
        ({"archive_data_pkl": b"\x80\x02N."}, "holds None where a tensor must be"),
        ({"archive_data_pkl": b"\x80\x02" + b"N0" * 40000 + b"."}, "at most 65536 expected"),
    ],
)
def test_archives_that_contradict_themselves_are_refused(item, changes, reason):
    data = saved(torch.ones(3))
    assert item(rezipped(data))[0].shape == (3,)
    with pytest.raises(CheckpointError, match=reason):
        item(rezipped(data, **changes))


@pytest.mark.parametrize("value", [None, 5, (1, -1), (True,), ("1",), (1,) * 17, (1 << 50,)])
def test_shapes_that_are_none_are_refused(value):
    with pytest.raises(CheckpointError):
        extents(value, "x")
