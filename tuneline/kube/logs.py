"""A container's log, once: reading goes on where it stood, across broken connections, restarts of the container and of the reader.

The API gives lines from a second on, not from a line on. So a reader asks again for the last second or two and leaves out, line by
line, what it has given before. What the kubelet rotated away meanwhile is lost, and is said to be.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import urllib3

from tuneline.core.clock import Deadline, utc
from tuneline.core.log import get_logger
from tuneline.kube.api import Api, ApiError, Ref, is_transient
from tuneline.kube.errors import ClusterUnreachable
from tuneline.kube.objects import Object, get

_log = get_logger("kube")

#: How far back a reader asks again: standard output and error may reach the log out of order, by less than this.
_OVERLAP_SECONDS = 1
_IDLE_SECONDS = 60.0
_PAUSE_SECONDS = 2.0


@dataclass
class LogPosition:
    """Where reading stands; a retry goes on from its JSON.

    Attributes:
        restarts: Restarts of the container before the one that is read.
        since: The second from which lines are asked for again, '' for the begin.
        seen: Lines from that second on that were given, and how often.
        last: The last line given.
    """

    restarts: int = 0
    since: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"restarts": self.restarts, "since": self.since, "seen": dict(self.seen), "last": self.last}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LogPosition:
        return cls(value["restarts"], value["since"], Counter(value["seen"]), value["last"])

    def take(self, line: str) -> None:
        """Note that `line` was given."""
        self.seen[line] += 1
        self.last = line
        since = _seconds_before(line, _OVERLAP_SECONDS)
        if since > self.since:
            self.since = since
            self.seen = Counter({kept: count for kept, count in self.seen.items() if kept[:19] >= since[:19]})

    def next_container(self, restarts: int) -> None:
        """Go on with a container that was started again."""
        self.restarts, self.since, self.seen, self.last = restarts, "", Counter(), ""


def read(api: Api, pod: Ref, container: str, position: LogPosition) -> Iterator[str]:
    """The lines that are there now behind `position`, which moves with each line; without their times.

    A log that is not there (yet, or any more) gives no line.
    """
    found = get(api, pod)
    if found is None:
        return
    try:
        yield from _up_to_restart(api, pod, container, position, found)
        yield from _fetch(api, pod, container, position, follow=False)
    except urllib3.exceptions.HTTPError as error:
        _raise_unless_transient(api, error)


def follow(api: Api, pod: Ref, container: str, position: LogPosition, deadline: Deadline) -> Iterator[str]:
    """Lines as they come, until the container has ended for good, its pod is gone, or the deadline passes.

    Raises:
        ClusterUnreachable: If the connection is refused for good; broken ones are taken up again.
    """
    while (found := get(api, pod)) is not None:
        ended = _ended(found, container)  # asked before reading: what is read after the end is all there is
        try:
            yield from _up_to_restart(api, pod, container, position, found)
            yield from _fetch(api, pod, container, position, follow=not ended)
        except urllib3.exceptions.HTTPError as error:
            _raise_unless_transient(api, error)
        else:
            if ended:
                return
        if deadline.passed:
            return
        api.clock.sleep(min(_PAUSE_SECONDS, deadline.left))


def _up_to_restart(api: Api, pod: Ref, container: str, position: LogPosition, found: Object) -> Iterator[str]:
    """If the container was started again: the rest of the log of the one before."""
    restarts = int(_status(found, container).get("restartCount", 0))
    if restarts <= position.restarts:
        return
    if restarts == position.restarts + 1:
        yield from _fetch(api, pod, container, position, follow=False, previous=True)
    else:
        yield f"[tuneline: the container was started {restarts - position.restarts} times since; only the last log is kept]"
    position.next_container(restarts)


def _fetch(api: Api, pod: Ref, container: str, position: LogPosition, *, follow: bool, previous: bool = False) -> Iterator[str]:
    query = {"container": container, "timestamps": "true", "follow": str(follow).lower(), "previous": str(previous).lower()}
    if position.since:
        query["sinceTime"] = position.since
    again, last, met_last = position.seen.copy(), position.last, not position.last
    try:
        for line in api.stream(f"{api.path(pod)}/log", query, idle_seconds=_IDLE_SECONDS):
            if follow and not line.endswith("\n"):
                return  # cut off in the middle; the whole line comes when we ask again
            line = line.removesuffix("\n")
            met_last = met_last or line == last
            if again[line] > 0:
                again[line] -= 1
                continue
            if not met_last:
                met_last = True
                yield f"[tuneline: lines after {last[:30]} are lost: the node rotated the log]"
            position.take(line)
            yield _text(line)
    except urllib3.exceptions.ReadTimeoutError:
        return  # nothing was logged for a while
    except ApiError as error:
        if error.status not in (400, 404):  # not started yet; no such pod; no earlier container
            raise urllib3.exceptions.HTTPError(str(error)) from error


def _raise_unless_transient(api: Api, error: urllib3.exceptions.HTTPError) -> None:
    if not is_transient(error):
        raise ClusterUnreachable("the connection to the cluster is refused", asked=api.host, found=str(error)) from error
    _log.info("the log broke off (%s); reading on from there", type(error).__name__)


def _text(line: str) -> str:
    return line.partition(" ")[2]


def _seconds_before(line: str, seconds: int) -> str:
    """The second of a line's time, less `seconds`, in RFC 3339; '' if it has none."""
    try:
        return utc(calendar.timegm(time.strptime(line[:19], "%Y-%m-%dT%H:%M:%S")) - seconds)
    except ValueError:
        return ""


def _status(pod: Object, container: str) -> dict[str, Any]:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((status for status in statuses if status["name"] == container), {})


def _ended(pod: Object, container: str) -> bool:
    """Whether the container has ended and will not be started again."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    terminated = "terminated" in _status(pod, container).get("state", {})
    return terminated and pod.get("spec", {}).get("restartPolicy") == "Never"
