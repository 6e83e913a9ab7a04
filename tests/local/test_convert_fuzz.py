"""A thousand mutated checkpoints; `make fuzz` converts twenty thousand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("checkpoints")
    script = TESTS / "unit/checkpoints/make_checkpoints.py"
    subprocess.run([sys.executable, script, out], check=True, timeout=120, stderr=subprocess.DEVNULL)
    return out


def test_a_thousand_mutated_checkpoints_are_refused_or_give_the_right_weights(checkpoints):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, TESTS / "fuzz_checkpoints.py", checkpoints, "1000", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout[done.stdout.index("\n") :])
    assert sum(counts.values()) == 1000
    assert sum(count for what, count in counts.items() if what.startswith("refused")) > 600
    assert {what.split()[1] for what in counts} >= {"_bytes", "_directory", "_numbers", "_files", "_hostile", "_metadata"}
