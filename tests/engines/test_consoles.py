"""The console texts that the parsers are tested on are what the engines print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.nemo import sources
from tests.engines.packages import ROOT, run
from tuneline.config.engine_rules import VERSIONS

CONSOLES = ROOT / "tests" / "golden" / "console"


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_verl_prints_the_golden(version: str) -> None:
    assert run(f"verl-{version}", "verl_print.py") == (CONSOLES / "verl.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", sources(), ids=lambda source: getattr(source, "name", "none"))
def test_nemo_rl_prints_the_golden(source: Path) -> None:
    script = Path(__file__).with_name("nemo_print.py")
    environment = {**os.environ, "NEMO_RL_SRC": str(source)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (CONSOLES / "nemo_rl.txt").read_text(encoding="utf-8")
