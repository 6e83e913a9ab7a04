"""Recipes: a flat YAML map of parameter values for one supported system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tuneline.core.errors import SpecError


def load_recipe(path: Path) -> dict[str, Any]:
    """The parameter values in a recipe.

    Raises:
        SpecError: If there is no such recipe (the message lists those that exist) or it is no flat map.
    """
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none here"
        raise SpecError([f"recipe {path.stem!r}: not found; choose one of {known}"])
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or any(isinstance(value, dict | list) for value in values.values()):
        raise SpecError([f"recipe {path.name}: must be a flat map of parameter names and values"])
    return values
