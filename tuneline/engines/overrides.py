"""Hydra overrides as single arguments: `NAME=VALUE`, quoted where Hydra's grammar would read more into a text than itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from tuneline.core.errors import StagingError

Value = bool | int | float | str | None | Sequence["Value"] | Mapping[str, "Value"]

_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")
#: Words that Hydra reads as something else than text.
_WORDS = ("null", "true", "false", "nan", "inf")


def override(name: str, value: Value) -> str:
    """`name=value` as one argument of a Hydra command line.

    Raises:
        StagingError: If a text holds `${`, which OmegaConf would replace, or a line break.
    """
    return f"{name}={_written(value)}"


def _written(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise StagingError(f"{value!r} is no setting", next_move="give a finite number")
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(item)}" for name, item in value.items()) + "}"
    return "[" + ",".join(map(_written, value)) + "]"


def _text(text: str) -> str:
    if "${" in text or "\n" in text:
        raise StagingError(
            f"{text!r} cannot be handed to the training engine", asked="a text without '${' and line breaks", next_move="rename it"
        )
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Inside quotes only a quote and the backslashes before one (or before the end) need a backslash.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"
