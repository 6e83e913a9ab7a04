"""Whether an object holds what was applied: the server adds fields and writes quantities its own way, but may not drop or change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|Mi|Gi|Ti|Pi|Ei|M|G|T|P|E)?")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_ABSENT = object()


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """One line for each field of `wanted` that `found` has not, or has otherwise; [] if `found` holds all of it.

    Empty maps, lists and texts, which the server may leave out, equal absent ones; `0.5` and `500m`, `1024Mi` and `1Gi` are equal.
    """
    if found is _ABSENT:
        return [] if wanted in ({}, [], "", None) else [f"{path or '.'}: {wanted!r} is missing"]
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return [f"{path}: wanted a map, found {found!r}"]
        return [line for key, value in wanted.items() for line in differences(value, found.get(key, _ABSENT), f"{path}.{key}")]
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(wanted) != len(found):
            return [f"{path}: wanted {len(wanted)} items, found {len(found) if isinstance(found, list) else found!r}"]
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for number, (one, other) in pairs for line in differences(one, other, f"{path}[{number}]")]
    if wanted == found and isinstance(wanted, bool) == isinstance(found, bool):
        return []
    amounts = _amount(wanted), _amount(found)
    if amounts[0] is not None and amounts[0] == amounts[1]:
        return []
    return [f"{path}: wanted {wanted!r}, found {found!r}"]


def _amount(value: Any) -> Decimal | None:
    """A quantity as a number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if not match:
        return None
    number, unit = Decimal(match[1]), match[2] or ""
    if unit == "m":
        return number / 1000
    return number * 1024 ** _BINARY[unit] if unit in _BINARY else number * Decimal(1000) ** _DECIMAL[unit]
