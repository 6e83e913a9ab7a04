"""Folders with the packages of each engine, made once by pip beside the project's own environment (which has torch and Ray)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tuneline.config.engine_rules import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
_HYDRA = ("hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3")
_VERL = ("tensordict==0.10.0", "codetiming", "pylatexenc", "torchdata", "orjson", "pyvers", "cloudpickle", "importlib_metadata", "zipp")
#: 0.6.1 does not import with transformers 5.
PACKAGES = {
    "verl-0.6.1": (
        "verl==0.6.1",
        *_HYDRA,
        *_VERL,
        "peft==0.17.1",
        "transformers==4.57.1",
        "huggingface_hub==0.36.0",
        "tokenizers==0.22.1",
    ),
    "verl-0.9.1": ("verl==0.9.1", *_HYDRA, *_VERL, "peft==0.19.1"),
    "nemo_rl": _HYDRA,
    "math-verify": ("math-verify==0.9.0", "latex2sympy2_extended==1.11.0", "antlr4-python3-runtime==4.13.2", "sympy", "mpmath"),
}


def packages(name: str) -> tuple[str, ...]:
    """What pip installs; a verl that is not listed is tried with the newest one's companions."""
    if name in PACKAGES:
        return PACKAGES[name]
    newest = PACKAGES[f"verl-{VERSIONS['verl'][-1]}"]
    return (name.replace("-", "==", 1), *newest[1:])


def folder(name: str) -> Path:
    """Where these packages lie; TUNELINE_ENGINES names another place than `.engines`."""
    return Path(os.environ.get("TUNELINE_ENGINES", ROOT / ".engines")) / name


@cache
def installed(name: str) -> Path:
    """The folder with these packages; skips the test, saying why, where pip cannot make it."""
    target = folder(name)
    if not (target / ".complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(target)]
        done = subprocess.run([*command, *packages(name)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            pytest.skip(f"the packages of {name} cannot be installed: {last}")
        (target / ".complete").touch()
    return target


def run(name: str, script: str, stdin: str = "", **environment: str) -> str:
    """The standard output of `tests/engines/<script>` with these packages first on the path."""
    values = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed(name)), str(ROOT)]),
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    command = [sys.executable, str(Path(__file__).with_name(script))]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=values, check=False)
    assert done.returncode == 0, f"{script} with {name}: {done.stderr[-4000:]}"
    return done.stdout


if __name__ == "__main__":
    version = os.environ["VERSION"]
    print(run("nemo_rl" if version.startswith("nemo_rl-") else version, "record.py"), end="")
