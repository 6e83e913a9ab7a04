"""Whose a resource is: labels where the API has them, else a JSON description, both written at creation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MANAGER = "tuneline"
MANAGED, RUN, EXPIRES = "managed-by", "tuneline-run", "tuneline-expires"
#: Attributes that hold labels, by API: GKE clusters and pools, everything else.
_LABELS = ("resource_labels", "labels")


@dataclass(frozen=True)
class Mark:
    """The mark of the run that creates a resource.

    Attributes:
        run: run_id.
        expires: UTC minute after which nobody should need it, as a label may hold it: 2026-12-06t21-33z.
    """

    run: str
    expires: str

    @property
    def labels(self) -> dict[str, str]:
        return {MANAGED: MANAGER, RUN: self.run, EXPIRES: self.expires}

    @property
    def description(self) -> str:
        return json.dumps(self.labels, sort_keys=True)

    def made(self, resource: Any) -> bool:
        """Whether this run created the resource."""
        return marks(resource).get(RUN) == self.run and marks(resource).get(MANAGED) == MANAGER


def marks(resource: Any) -> dict[str, str]:
    """The ownership marks on a resource (a proto-plus message, a dict, a bucket): empty where it carries none."""
    config = _part(resource, "config")  # A node pool's labels are its nodes'.
    for holder in (resource, config):
        for name in _LABELS:
            labels = _part(holder, name)
            if isinstance(labels, Mapping) or hasattr(labels, "items"):
                found = {key: str(value) for key, value in labels.items() if key in (MANAGED, RUN, EXPIRES)}
                if found:
                    return found
    return _described(_part(resource, "description"))


def owner(resource: Any) -> str:
    """A person's answer to whose a resource is."""
    found = marks(resource)
    if not found:
        return "nobody that Tuneline knows"
    return f"{MANAGED}={found.get(MANAGED, '?')}, {RUN}={found.get(RUN, '?')}"


def _described(text: Any) -> dict[str, str]:
    if not isinstance(text, str) or not re.match(r"\s*\{", text):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return {key: str(value[key]) for key in (MANAGED, RUN, EXPIRES) if key in value} if isinstance(value, dict) else {}


def _part(resource: Any, name: str) -> Any:
    if isinstance(resource, Mapping):
        return resource.get(name)
    return getattr(resource, name, None)
