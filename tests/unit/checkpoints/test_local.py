import json
import os

import pytest

from tuneline.checkpoints import local
from tuneline.checkpoints.local import KEEP_SECONDS, LocalWork
from tuneline.checkpoints.safetensors import Item, plan_shards
from tuneline.checkpoints.tensors import F32
from tuneline.core.errors import CheckpointError
from tuneline.lineage.digests import FileDigest, content_digest, digest_folder

PRINT = "a" * 64


class At:
    def __init__(self, seconds):
        self.seconds = seconds

    def now(self):
        return self.seconds


def one_shard():
    (shard,) = plan_shards([Item("a", F32, (4,))], 100)
    return shard


def fill(work, shard):
    sink = work.open(shard)
    sink.close()
    digest = FileDigest(shard.file, "0" * 64, shard.nbytes)
    work.done(digest)
    return digest


def test_a_kept_work_folder_is_gone_on_from(tmp_path):
    shard = one_shard()
    work = LocalWork(tmp_path, PRINT)
    assert work.finished(shard) is None
    digest = fill(work, shard)
    work.keep()
    again = LocalWork(tmp_path, PRINT)
    assert again.finished(shard) == digest
    again.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spoil", ["size", "time", "record", "other"])
def test_a_shard_that_is_not_as_it_was_left_is_written_again(tmp_path, spoil):
    shard = one_shard()
    work = LocalWork(tmp_path, PRINT)
    fill(work, shard)
    work.keep()
    (folder,) = tmp_path.iterdir()
    path = folder / "folder" / shard.file
    if spoil == "size":
        os.truncate(path, 5)
    elif spoil == "time":
        os.utime(path, (1, 1))
    elif spoil == "record":
        (folder / "state" / f"{shard.file}.json").write_text("{")
    again = LocalWork(tmp_path, PRINT)
    (wider,) = plan_shards([Item("a", F32, (5,))], 100)
    assert again.finished(wider if spoil == "other" else shard) is None


def test_nothing_finished_leaves_nothing(tmp_path):
    LocalWork(tmp_path, PRINT).keep()
    assert not list(tmp_path.iterdir())


def test_two_at_the_same_conversion_do_not_share_a_folder(tmp_path):
    first, second = LocalWork(tmp_path, PRINT), LocalWork(tmp_path, PRINT)
    assert len(list(tmp_path.iterdir())) == 2
    for work in (first, second):
        files = (work.put("a/b.json", b"{}"),)
        assert work.publish(content_digest(files), files, None) == str(tmp_path / content_digest(files))
    assert [path.name for path in tmp_path.iterdir()] == [content_digest(files)]
    assert digest_folder(tmp_path / content_digest(files)) == files


def test_what_was_left_long_ago_is_removed_and_what_is_in_use_stays(tmp_path):
    shard = one_shard()
    left, used = LocalWork(tmp_path, "1" * 64), LocalWork(tmp_path, "2" * 64)
    fill(left, shard)
    left.keep()
    now = (tmp_path / f".convert-{'1' * 16}.tmp").stat().st_mtime
    LocalWork(tmp_path, PRINT, At(now + KEEP_SECONDS - 60)).discard()
    assert len(list(tmp_path.iterdir())) == 2
    LocalWork(tmp_path, PRINT, At(now + KEEP_SECONDS + 60)).discard()
    assert [path.name for path in tmp_path.iterdir()] == [f".convert-{'2' * 16}.tmp"]
    used.discard()


def test_a_torn_sidecar_of_a_killed_conversion_is_not_published(tmp_path):
    work = LocalWork(tmp_path, PRINT)
    files = (work.put("config.json", b"{}"),)
    (folder,) = tmp_path.iterdir()
    (folder / "folder/.lineage.json.123.tmp").write_text("{")
    (folder / "folder/lineage.json").write_text("{")
    seen = []
    final = work.publish(content_digest(files), files, lambda folder, files: seen.append(sorted(os.listdir(folder))))
    assert seen == [["config.json"]]
    assert os.listdir(final) == ["config.json"]


def test_a_lock_that_cannot_be_had_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_lock", lambda path: None)
    with pytest.raises(CheckpointError, match="another conversion"):
        LocalWork(tmp_path, PRINT)


def test_the_record_of_a_shard_is_json(tmp_path):
    shard = one_shard()
    work = LocalWork(tmp_path, PRINT)
    fill(work, shard)
    (path,) = tmp_path.glob("*/state/*.json")
    assert json.loads(path.read_text())["size"] == shard.nbytes
    work.discard()
