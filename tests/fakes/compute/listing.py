"""Compute's lists: filters in both of its languages, pages."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.errors import ApiError
from tests.fakes.world import Body

_TERM = re.compile(r"""\(?\s*(?P<field>[\w.\-]+)\s*(?P<op>!=|=|:|\beq\b|\bne\b)\s*(?P<value>"[^"]*"|'[^']*'|[^\s()]+)\s*\)?""")
#: Items of a page where the caller names no maxResults.
PAGE = 500


def matches(expression: str, body: Body) -> bool:
    """Whether a resource passes a filter: `name=x`, `name:x*`, `name eq 'regex'`, `labels.k=v`, joined by AND or OR.

    Raises:
        ApiError: 400 for what this fake cannot read: rather that than a wrong answer.
    """
    alternatives = re.split(r"\s+OR\s+", expression)
    return any(all(_term(term, body) for term in re.split(r"\s+AND\s+|(?<=\))\s*(?=\()", option)) for option in alternatives)


def _term(term: str, body: Body) -> bool:
    found = _TERM.fullmatch(term.strip())
    if not found:
        raise ApiError(400, f"Invalid value for field 'filter': '{term}'. Invalid list filter expression.", reason="invalid")
    value: Any = body
    for key in found["field"].split("."):
        value = value.get(key) if isinstance(value, dict) else None
    text = {True: "true", False: "false", None: ""}.get(value, str(value)) if not isinstance(value, list | dict) else str(value)
    want, operator = found["value"].strip("\"'"), found["op"]
    if operator in ("eq", "ne"):
        return bool(re.fullmatch(want, text)) == (operator == "eq")
    if operator == ":" and want == "*":
        return value is not None
    if operator == ":":
        return want.rstrip("*") in text
    return (re.fullmatch(re.escape(want).replace(r"\*", ".*"), text) is not None) == (operator == "=")


def page(items: list[Body], query: dict[str, str], size_limit: int | None = None) -> tuple[list[Body], str]:
    """The items of the page that `query` asks for, filtered, and the next page's token ('' on the last)."""
    kept = [item for item in items if "filter" not in query or matches(query["filter"], item)]
    size = min(int(query.get("maxResults") or query.get("pageSize") or PAGE) or PAGE, size_limit or PAGE)
    start = int(query.get("pageToken") or 0)
    return kept[start : start + size], str(start + size) if start + size < len(kept) else ""
