"""Copies of NeMo RL to test against: NEMO_RL_SRC names folders, separated by `:`, each with a version's tree (v0.5.0, v0.7.0, newer)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

REASON = "NEMO_RL_SRC names no copy of github.com/NVIDIA-NeMo/RL"


def sources() -> list[Any]:
    """The copies as parameters of a test; one that is skipped, with its reason, where there is none."""
    folders = [Path(part) for part in os.environ.get("NEMO_RL_SRC", "").split(os.pathsep) if part]
    return folders or [pytest.param(None, marks=pytest.mark.skip(reason=REASON))]


def version(source: Path) -> str:
    """Which of the versions that Tuneline knows a copy is like: those before 0.6 have no `data.train`."""
    text = (source / "examples" / "configs" / "grpo_math_1B.yaml").read_text(encoding="utf-8")
    return "v0.7.0" if re.search(r"(?m)^  train:", text) else "v0.5.0"
