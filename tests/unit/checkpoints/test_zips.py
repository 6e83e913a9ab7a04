import io
import struct
import warnings
import zipfile

import pytest

from tuneline.checkpoints.blobs import FileBlob
from tuneline.checkpoints.zips import Archive, Span
from tuneline.core.errors import CheckpointError

CONTENT = {"archive/data.pkl": b"pickle", "archive/data/0": bytes(range(200)) * 20, "archive/version": b"3\n"}


def zipped(content=None, compression=zipfile.ZIP_STORED, streamed=False):
    """A zip by Python's zipfile; `streamed` writes data descriptors, as torch does."""
    out = io.BytesIO()

    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            return out.write(data)

    with zipfile.ZipFile(Pipe() if streamed else out, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in CONTENT.items() if content is None else content:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return out.getvalue()


@pytest.fixture
def opened(tmp_path):
    blobs = []

    def open_archive(data, start=0, length=None, max_entries=8):
        path = tmp_path / f"{len(blobs)}.distcp"
        path.write_bytes(data)
        blobs.append(FileBlob(path))
        return Archive(Span(blobs[-1], start, len(data) - start if length is None else length), max_entries=max_entries)

    yield open_archive
    for blob in blobs:
        blob.close()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("before", [0, 100])
def test_entries_are_found_where_they_lie(opened, streamed, before):
    data = b"x" * before + zipped(streamed=streamed) + b"y" * 50
    archive = opened(data, before, len(data) - before - 50)
    assert set(archive.entries) == set(CONTENT)
    for name, content in CONTENT.items():
        start, entry = archive.locate(name)
        assert data[before + start : before + start + entry.size] == content
        assert archive.read(name, max_bytes=5000) == content


def with_zip64(data):
    """`data` (a zip) with every number of its directory in zip64 fields, as in one larger than 4 GiB."""
    at = data.index(b"PK\1\2")
    head, central, count = data[:at], b"", 0
    while data[at : at + 4] == b"PK\1\2":
        fields = list(struct.unpack("<4s6H3I5H2I", data[at : at + 46]))
        name = data[at + 46 : at + 46 + fields[10]]
        extra = struct.pack("<HHQQQ", 1, 24, fields[9], fields[8], fields[16])
        fields[8] = fields[9] = fields[16] = 0xFFFFFFFF
        fields[11] = len(extra)
        central += struct.pack("<4s6H3I5H2I", *fields) + name + extra
        at += 46 + len(name)
        count += 1
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(central), len(head))
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(head) + len(central), 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return head + central + end64 + locator + end


def test_zip64_is_read(opened):
    data = with_zip64(zipped())
    archive = opened(data)
    for name, content in CONTENT.items():
        start, entry = archive.locate(name)
        assert data[start : start + entry.size] == content


def replaced(data, old, new):
    assert data.count(old) >= 1
    return data.replace(old, new, 1)


def patched(data, sign, offset, form, value):
    """`data` with a number in the first header that begins with `sign` changed."""
    at = data.index(sign) + offset
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


TRICKS = {
    "compressed": lambda: zipped(compression=zipfile.ZIP_DEFLATED),
    "empty": lambda: zipped([]),
    "doubled entry": lambda: zipped([*CONTENT.items(), ("archive/data/0", b"other")]),
    "bytes before": lambda: b"PK\3\4junk" + zipped(),
    "bytes after": lambda: zipped() + b"junk",
    "comment": lambda: patched(zipped(), b"PK\5\6", 20, "<H", 4) + b"junk",
    "encrypted": lambda: patched(zipped(), b"PK\1\2", 8, "<H", 1),
    "second disk": lambda: patched(zipped(), b"PK\1\2", 34, "<H", 1),
    "fewer entries": lambda: patched(zipped(), b"PK\5\6", 10, "<H", 2),
    "directory elsewhere": lambda: patched(zipped(), b"PK\5\6", 16, "<I", 0),
    "directory past the end": lambda: patched(zipped(), b"PK\5\6", 12, "<I", 1 << 31),
    "long name": lambda: patched(zipped(), b"PK\1\2", 28, "<H", 60000),
    "zip64 field missing": lambda: patched(zipped(), b"PK\1\2", 24, "<I", 0xFFFFFFFF),
    "zip64 end elsewhere": lambda: replaced(with_zip64(zipped()), b"PK\6\6", b"PK\6\5"),
    "too many": lambda: zipped([(f"{i}", b"") for i in range(9)]),
    "no zip": lambda: bytes(500),
    "short": lambda: b"PK\5\6",
    "name is no utf-8": lambda: zipped().replace(b"archive/version", b"archive/\xff\xfe\xff\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_with_the_directory_are_refused(opened, trick):
    with pytest.raises(CheckpointError, match="malformed zip"):
        opened(TRICKS[trick]())


LOCAL_TRICKS = {
    "other name": lambda: replaced(zipped(), b"archive/data.pkl", b"archive/data.pkk"),
    "moved content": lambda: patched(zipped(), b"PK\3\4", 28, "<H", 4),
    "moved into the name": lambda: patched(zipped(), b"PK\3\4", 26, "<H", 12),
    "other size": lambda: patched(zipped(), b"PK\3\4", 22, "<I", 5),
    "other size, both": lambda: patched(patched(zipped(), b"PK\1\2", 24, "<I", 5), b"PK\1\2", 20, "<I", 5),
    "other crc": lambda: patched(zipped(), b"PK\3\4", 14, "<I", 5),
    "other method": lambda: patched(zipped(), b"PK\3\4", 8, "<H", 8),
    "other descriptor": lambda: patched(zipped(streamed=True), b"PK\7\x08", 4, "<I", 5),
    "damaged": lambda: replaced(zipped(), b"pickle", b"pickla"),
}


@pytest.mark.parametrize("trick", LOCAL_TRICKS)
def test_tricks_with_an_entry_are_refused(opened, trick):
    archive = opened(LOCAL_TRICKS[trick]())
    with pytest.raises(CheckpointError, match="malformed zip"):
        archive.read("archive/data.pkl", max_bytes=100)


def test_a_missing_or_large_entry_is_refused(opened):
    archive = opened(zipped())
    with pytest.raises(CheckpointError, match="it has no 'archive/data/1'"):
        archive.locate("archive/data/1")
    with pytest.raises(CheckpointError, match="at most 100 expected"):
        archive.read("archive/data/0", max_bytes=100)


def test_a_span_past_the_end_is_refused(opened):
    with pytest.raises(CheckpointError, match="shorter than its metadata says"):
        opened(zipped(), 0, 1 << 40)


def test_every_truncation_is_refused(opened):
    data = zipped([("a/data.pkl", b"p")], streamed=True)
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            opened(data[:length])
