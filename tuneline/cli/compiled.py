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
    """The parameter values that the compiled pipeline carries.

    Raises:
        SpecError: If the file is no pipeline of ours.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        inputs = document["root"]["inputDefinitions"]["parameters"]
        values = {name: definition["defaultValue"] for name, definition in inputs.items()}
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SpecError([f"recipe {str(path)!r}: no pipeline that compile.py made ({type(error).__name__}: {reason})"]) from error
    if "output_root" not in values:
        raise SpecError([f"recipe {str(path)!r}: no pipeline that compile.py made (it takes no output_root)"])
    return values


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
