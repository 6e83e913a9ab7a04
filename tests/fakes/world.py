"""What exists, and what happens when: the state that all the fakes share."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.clock import FakeClock
from tests.fakes.errors import ApiError

Body = dict[str, Any]


@dataclass
class Project:
    """A project: its number, what is enabled in it, and its quotas.

    Attributes:
        enabled: APIs, as in `container.googleapis.com`; None for all of them.
        quotas: Limit of each (metric, region); region '' is global. A metric that is not named has no limit.
        identity_pool: Whether PROJECT.svc.id.goog exists: the first cluster with workload identity makes it, and it stays.
    """

    id: str
    number: str
    enabled: set[str] | None = None
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    identity_pool: bool = False


@dataclass
class Entry:
    """One resource.

    Attributes:
        body: As the API shows it.
        busy: '', 'creating' or 'deleting'.
        planted: There before the code under test came: a reservation, the default network.
        extra: What the fakes know of it and no API shows.
    """

    body: Body
    busy: str = ""
    planted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class World:
    """Projects, resources by path, and events in virtual time.

    A path is what follows the API's version in a URL: `projects/demo/global/networks/n`. Everything here is guarded by `lock`.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.projects: dict[str, Project] = {}
        self.resources: dict[str, Entry] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count(1)
        self._moment: float | None = None

    def now(self) -> float:
        """The moment of the event that is happening, or the clock's."""
        return self.clock.now() if self._moment is None else self._moment

    def stamp(self) -> str:
        """`now` as RFC 3339 with milliseconds."""
        now = self.now()
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` once `seconds` of virtual time have passed."""
        heapq.heappush(self._events, (self.now() + seconds, next(self._serial), action))

    def settle(self) -> None:
        """Let everything happen that is due."""
        if self._moment is not None:
            return
        try:
            while self._events and self._events[0][0] <= self.clock.now():
                self._moment, _, action = heapq.heappop(self._events)
                action()
        finally:
            self._moment = None

    def serial(self) -> int:
        """A number that was not given before."""
        return next(self._serial)

    def id(self, *parts: object) -> str:
        """A 64 hex character id, the same in every run of a test."""
        return hashlib.sha256("/".join(map(str, (*parts, self.serial()))).encode()).hexdigest()

    def project(self, name: str) -> Project:
        """A project by id or number.

        Raises:
            ApiError: 403, as Google answers for projects that a caller cannot see.
        """
        for project in self.projects.values():
            if name in (project.id, project.number):
                return project
        raise ApiError(403, f"Permission denied on resource project {name}.", info=("CONSUMER_INVALID", "googleapis.com"))

    def get(self, path: str) -> Entry | None:
        return self.resources.get(path)

    def children(self, parent: str) -> Iterator[tuple[str, Entry]]:
        """Resources right under a collection such as `projects/demo/global/networks`."""
        for path, entry in list(self.resources.items()):
            if path.rpartition("/")[0] == parent:
                yield path, entry

    def of_kind(self, kind: str, project: str = "") -> Iterator[tuple[str, Entry]]:
        """Resources of a kind (`zones/instances`, `global/networks`), in every place."""
        for path, entry in list(self.resources.items()):
            parts = path.split("/")
            if len(parts) > 3 and f"{parts[2]}/{parts[-2]}" == kind and (not project or parts[1] == project):
                yield path, entry

    def add(self, path: str, body: Body, *, busy: str = "", planted: bool = False, **extra: Any) -> Entry:
        entry = self.resources[path] = Entry(body, busy, planted, extra)
        return entry

    def remove(self, path: str) -> None:
        self.resources.pop(path, None)


def leaf(path: str) -> str:
    """The last part of a path or URL."""
    return path.rstrip("/").rpartition("/")[2]
