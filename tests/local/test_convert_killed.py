"""Conversions killed at any moment: nothing half is ever published, and the next one goes on and gives the same bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tuneline.checkpoints.convert import convert
from tuneline.lineage.digests import SIDECAR, digest_folder

MOMENTS = 50
SCRIPT = """
import sys
from pathlib import Path
from tuneline.checkpoints.convert import convert
source, out, base = map(Path, sys.argv[1:])
finish = lambda folder, files: (folder / "lineage.json").write_text("{}")
print("begun", flush=True)
convert(source, out, base_dir=base, max_shard_bytes=4_000_000, threads=2, finish=finish)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[Path, Path]:
    """A DCP of 96 MB and a base for it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(1000, 1000) for i in range(24)}
    dcp.save(tensors, checkpoint_id=folder / "step_1/weights", no_dist=True)
    (folder / "base").mkdir()
    (folder / "base/config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return folder / "step_1", folder / "base"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_killed_at_random_moments(checkpoint, tmp_path):
    source, base = checkpoint
    right = convert(source, tmp_path / "undisturbed", base_dir=base, max_shard_bytes=4_000_000)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = tmp_path / "out"

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, source, out, base], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        process.stdout.readline()
        return process

    began = time.monotonic()
    assert start().wait(60) == 0
    takes = time.monotonic() - began
    chooser, killed, resumed = random.Random(1), 0, 0
    for _ in range(6 * MOMENTS):  # a busy machine may let many end before their moment
        if killed == MOMENTS:
            break
        if chooser.random() < 0.3 or not list(out.glob(".convert-*")):
            for path in sorted(out.glob("*/**/*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            for path in out.iterdir():
                path.rmdir()
        resumed += bool(list(out.glob(".convert-*/state/*.json")))
        process, began = start(), time.monotonic()
        try:
            process.wait(chooser.uniform(0, takes))
            takes = min(takes, time.monotonic() - began)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += process.wait(60) == -signal.SIGKILL
        published = [path for path in out.iterdir() if not path.name.startswith(".")]
        assert [path.name for path in published] in ([], [right.digest])
        for path in published:
            assert digest_folder(path) == right.files
            assert (path / SIDECAR).exists()
    assert killed == MOMENTS
    assert resumed > 3
    assert start().wait(60) == 0
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == [right.digest]
    assert digest_folder(out / right.digest) == right.files
