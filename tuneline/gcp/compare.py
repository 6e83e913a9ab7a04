"""Asked against found: every field that was asked for is as asked in what the API reads back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tuneline.gcp.errors import Conflict
from tuneline.gcp.ownership import EXPIRES, MANAGED, MANAGER, RUN, Mark, marks, owner

_URL = re.compile(r"^https?://[^/]+/(?:[\w]+/)*?(?:v1|beta|v1beta1)/")
_PROJECT = re.compile(r"^projects/[^/]+/")
#: What differs from one attempt or run to the next and says nothing about the thing itself.
_VOLATILE = (EXPIRES, "description")


def as_dict(message: Any) -> dict[str, Any]:
    """A proto-plus message as a dict with the proto's field names, enums by name, unset fields absent."""
    if isinstance(message, Mapping):
        return dict(message)
    value: dict[str, Any] = type(message).to_dict(message, use_integers_for_enums=False, always_print_fields_with_no_presence=False)
    return value


def as_json(message: Any) -> dict[str, Any]:
    """A proto-plus message as the body of its REST request."""
    value: dict[str, Any] = type(message).to_dict(
        message, use_integers_for_enums=False, always_print_fields_with_no_presence=False, preserving_proto_field_name=False
    )
    return value


def differences(asked: Any, found: Any, *, only: Iterable[str] = ()) -> list[str]:
    """Lines `path: asked A, found B`, for every asked leaf that is otherwise in `found`.

    Args:
        only: Path prefixes to look at (a prefix covers what is below it); empty for all.
    """
    prefixes = tuple(only)
    lines = []
    for path, left, right in _leaves("", as_dict(asked), as_dict(found)):
        if path.rsplit(".", 1)[-1] in _VOLATILE or (prefixes and not _covered(path, prefixes)):
            continue
        lines.append(f"{path}: asked {left!r}, found {right!r}")
    return lines


def _covered(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in prefixes)


def _leaves(path: str, asked: Any, found: Any) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(asked, Mapping):
        below = found if isinstance(found, Mapping) else {}
        for key, value in asked.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), value, below.get(key))
    elif isinstance(asked, list) and asked and isinstance(asked[0], Mapping):
        items = found if isinstance(found, list) else []
        for number, value in enumerate(asked):
            yield from _leaves(f"{path}[{number}]", value, items[number] if number < len(items) else None)
        if len(items) > len(asked):
            yield path, f"{len(asked)} items", f"{len(items)} items"
    elif isinstance(asked, list):
        items = found if isinstance(found, list) else []
        if {plain(item) for item in asked} - {plain(item) for item in items}:
            yield path, asked, found
    elif not _same(asked, found):
        yield path, asked, found


def _same(asked: Any, found: Any) -> bool:
    if not asked and not found:
        return True
    left, right = plain(asked), plain(found)
    # GKE answers with the bare name where it was given projects/P/global/networks/N, and the other way round.
    return left == right or (("/" in left) != ("/" in right) and left.rsplit("/", 1)[-1] == right.rsplit("/", 1)[-1])


def plain(value: Any) -> str:
    """A value for comparison: resource addresses without host and project (which comes by id or by number)."""
    return _PROJECT.sub("", _URL.sub("", str(value)))


def check_found(what: str, asked: Any, found: Any, *, mark: Mark, must: Iterable[str], ignore: Iterable[str] = ()) -> bool:
    """Judge a thing that is there: this run's own must be all that was asked; another's only what `must` lists.

    Returns:
        True if this run created it, False if it is adopted.

    Raises:
        Conflict: It is another manager's, or differs; names both values.
    """
    manager = marks(found).get(MANAGED, MANAGER)
    if manager != MANAGER:
        raise Conflict(
            f"{what} is there and belongs to somebody else",
            asked=f"{MANAGED}={MANAGER}, {RUN}={mark.run}",
            found=owner(found),
            next_move="choose another infra_name, or let its owner remove it",
        )
    mine = mark.made(found)
    skipped = tuple(ignore)
    lines = [line for line in differences(asked, found, only=() if mine else must) if not _covered(line.split(":", 1)[0], skipped)]
    if lines:
        raise Conflict(
            f"{what} is there but is not what was asked for: {'; '.join(lines)}",
            asked=f"what the parameters say, for run {mark.run}",
            found=f"made by {owner(found)}",
            next_move="make the parameters agree with it, choose another infra_name, or remove it if nobody uses it",
        )
    return mine
