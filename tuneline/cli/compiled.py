"""Compiled pipelines: where they lie, and the values that a recipe put into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from tuneline.core.errors import SpecError

FOLDER = Path(__file__).resolve().parents[2] / "compiled"


def find(recipe: str) -> Path:
    """The compiled pipeline of a recipe: its name, or a path to a YAML file.

    Raises:
        SpecError: If there is none; the message lists those that exist.
    """
    path = Path(recipe) if recipe.endswith(".yaml") else FOLDER / f"{recipe}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in FOLDER.glob("*.yaml"))) or f"none in {FOLDER}"
        raise SpecError([f"recipe {recipe!r}: not found; choose one of {known}, or name a compiled YAML file"])
    return path.resolve()


def defaults(path: Path) -> dict[str, Any]:
    """The parameter values that the compiled pipeline carries."""
    document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    inputs = document["root"]["inputDefinitions"]["parameters"]
    return {name: definition["defaultValue"] for name, definition in inputs.items()}


def assignments(values: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as a map.

    Raises:
        click.BadParameter: For a text without '='.
    """
    pairs = [text.partition("=") for text in values]
    for name, sign, _ in pairs:
        if not sign:
            raise click.BadParameter(f"{name!r}: want name=value, as in --set train_learning_rate=1e-3")
    return {name: value for name, _, value in pairs}
