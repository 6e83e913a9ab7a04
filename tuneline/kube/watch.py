"""Waiting for an object: a watch that lists again when it breaks or is too old, with a deadline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.kube.api import Api, ApiError, Ref, is_transient
from tuneline.kube.errors import ClusterUnreachable, WaitTimeout
from tuneline.kube.objects import Object, get

_log = get_logger("kube")

#: A watch lasts at most this long, so that a silent one cannot outlive its deadline or a dead connection.
WATCH_SECONDS = 60.0
_PAUSE_SECONDS = 1.0


def wait_for_(
    api: Api, ref: Ref, condition: Callable[[Object | None], bool], deadline: Deadline, *, about: str, hint: Callable[[], str] | None = None
) -> Object | None:
    """Wait until `condition` holds for the object (None while it is not there).

    Args:
        condition: May raise to end the wait: that is how a state that will never become good is told.
        about: What is waited for, as in "Ray cluster is ready".
        hint: Why it is not so yet, asked at the deadline.

    Returns:
        The object for which it held.

    Raises:
        WaitTimeout: At the deadline, with the last state and the hint.
    """
    last: Object | None = None
    for last in _states(api, ref, deadline):
        if condition(last):
            return last
    raise WaitTimeout(
        f"{about}: not within the time given",
        asked=str(ref),
        found="; ".join(filter(None, [_summary(last), hint() if hint else ""])),
        next_move="see the cause above; give more time if the cluster was on its way",
    )


def _states(api: Api, ref: Ref, deadline: Deadline) -> Iterator[Object | None]:
    """The object now, and after each change, until the deadline; at least once."""
    while True:
        found = get(api, ref)
        yield found
        if deadline.passed:
            return
        started = api.clock.monotonic()
        try:
            yield from _changes(api, ref, found, deadline)
        except ApiError as error:
            # 410: what the watch wants to go on from is forgotten. 404: kind or namespace went. Both are seen anew by the list above.
            _log.info("watch of %s ends (%s); listing again", ref, error)
        except urllib3.exceptions.HTTPError as error:
            if not is_transient(error):
                raise ClusterUnreachable("the connection to the cluster is refused", asked=api.host, found=str(error)) from error
            _log.info("watch of %s broke (%s); listing again", ref, type(error).__name__)
        if api.clock.monotonic() - started < _PAUSE_SECONDS:
            api.clock.sleep(min(_PAUSE_SECONDS, deadline.left))


def _changes(api: Api, ref: Ref, found: Object | None, deadline: Deadline) -> Iterator[Object | None]:
    seconds = max(1, int(min(WATCH_SECONDS, deadline.left)))
    query = {"watch": "true", "fieldSelector": f"metadata.name={ref.name}", "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true"}
    if found:  # without a version the server starts with what is there now
        query["resourceVersion"] = found["metadata"]["resourceVersion"]
    for line in api.stream(api.collection(ref.api_version, ref.kind, ref.namespace), query, idle_seconds=seconds + 10.0):
        event: dict[str, Any] = json.loads(line)
        if event["type"] == "ERROR":
            raise ApiError(int(event["object"].get("code", 500)), event["object"], line)
        if event["type"] != "BOOKMARK":
            yield None if event["type"] == "DELETED" else event["object"]
        if deadline.passed:
            return


def _summary(found: Object | None) -> str:
    if found is None:
        return "it is not there"
    status = {key: value for key, value in found.get("status", {}).items() if isinstance(value, str | int) and value != ""}
    return ", ".join(f"{key} {value}" for key, value in status.items())[:400] or "it has no status yet"
