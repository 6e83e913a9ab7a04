"""References between resources: every way to write one, and the one way in which Compute answers."""

from __future__ import annotations

import re

from tests.fakes.world import World

ROOT = "https://www.googleapis.com/compute/v1/"
_HOSTS = re.compile(r"https?://[^/]+/compute/(v1|beta)/|^/+")
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")
REGION = re.compile(r"[a-z]+-[a-z]+\d+")


def link(path: str) -> str:
    """The URL of a path."""
    return ROOT + path


def resolve(world: World, project: str, value: str, collection: str = "") -> str:
    """The path behind a URL, a path, a partial path or, where `collection` (`global/networks`) is given, a bare name."""
    path = _HOSTS.sub("", value)
    if "/" not in path:
        path = f"{collection}/{path}"
    if not path.startswith("projects/"):
        path = f"projects/{project}/{path}"
    parts = path.split("/")
    parts[1] = world.project(parts[1]).id
    return "/".join(parts)


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]
