"""The all-reduce measurement as it reaches a cluster: as text, here with gloo on two processes of a real Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path


def test_two_processes_measure(tmp_path: Path) -> None:
    program = files("tuneline.rayjobs").joinpath("allreduce.py").read_text()
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")} | settings
    argv = [sys.executable, "-c", program, "2", "1", "0.001", str(1 << 20), "gloo"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert told["gpus"] == 2
    assert told["all_reduce_gb_s"] >= 0
