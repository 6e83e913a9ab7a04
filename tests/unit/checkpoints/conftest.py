"""Checkpoints that torch itself wrote, once a session, in a process of its own."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What make_checkpoints.py describes; not to be changed."""
    out = tmp_path_factory.mktemp("checkpoints")
    script = Path(__file__).with_name("make_checkpoints.py")
    done = subprocess.run([sys.executable, str(script), str(out)], capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def edited(checkpoints: Path, tmp_path: Path) -> Callable[[str, Callable[[Any], None]], Path]:
    """Copies a DCP folder and changes its metadata by a function on torch's Metadata object; returns the copy."""

    def edit(name: str, change: Callable[[Any], None]) -> Path:
        copy = tmp_path / "edited"
        shutil.copytree(checkpoints / name, copy)
        metadata = pickle.loads((copy / ".metadata").read_bytes())
        change(metadata)
        (copy / ".metadata").write_bytes(pickle.dumps(metadata))
        return copy

    return edit
