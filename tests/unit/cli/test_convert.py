"""The two commands, on a model small enough to make here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from tuneline.cli import check_weights, convert
from tuneline.cli.convert import Size


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model, and a base that differs from it."""
    for name, value in (("source", 2.0), ("base", 1.0)):
        folder = tmp_path / name
        folder.mkdir()
        save_file(
            {"model.norm.weight": torch.full((4,), value), "model.layers.0.x": torch.full((100,), value)}, folder / "model.safetensors"
        )
        (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return tmp_path / "source"


def run(*arguments: object) -> tuple[int, str]:
    command, *rest = arguments
    result = CliRunner().invoke(command, [str(each) for each in rest])  # type: ignore[arg-type]
    return result.exit_code, result.output


def test_a_conversion_that_is_checked(source: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    code, output = run(convert.command, source, out, "--base", base, "--dtype", "bf16", "--fp32", "norms", "--shard-size", "200B", "--json")
    assert code == 0, output
    made = json.loads(output)
    assert (made["kind"], made["parameters"], made["step"]) == ("hugging face", 104, None)
    assert (Path(made["uri"]) / "lineage.json").exists()
    code, output = run(check_weights.command, made["uri"], "--base", base)
    assert (code, output.splitlines()[-1]) == (0, "sound"), output
    code, output = run(check_weights.command, base, "--base", base, "--json")
    assert code == 1
    assert "training changed nothing" in json.loads(output)["faults"][0]


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("500 mb", 500 * 10**6), ("2GiB", 2 << 30), ("7", 7), ("1.5K", 1500)])
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


def test_a_size_that_is_none(source: Path, tmp_path: Path) -> None:
    code, output = run(convert.command, source, tmp_path / "out", "--base", tmp_path / "base", "--shard-size", "big")
    assert code == 2
    assert "is no size" in output
