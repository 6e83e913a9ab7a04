"""Requests to all Google APIs under one discipline.

An answer that never came is ambiguous, so the thing is read again before the request is sent again; every wait is on the clock and ends
at a deadline that names what was waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.gcp.clients import REQUEST_SECONDS, Google
from tuneline.gcp.errors import Conflict, NotFound, NotReady, Unavailable, WaitedTooLong, translated

T = TypeVar("T")
_log = get_logger("gcp")

#: Seconds between looks at a busy target (gcp.md 2.2: 30 s to 2 min for up to 30 min and more).
BUSY_SECONDS = 30.0
LONGEST_PAUSE = 60.0
#: Options of every generated client's call: its own retry would sleep on the real clock.
PLAIN: dict[str, Any] = {"retry": None, "timeout": REQUEST_SECONDS}


def pauses() -> Iterator[float]:
    """Seconds between tries: 1, 2, 4 ... 60, 60 ..."""
    pause = 1.0
    while True:
        yield pause
        pause = min(LONGEST_PAUSE, pause * 2)


def call(google: Google, what: str, send: Callable[[], T], deadline: Deadline, *, repeat: bool = True) -> T:
    """Send one request; wait out 503, 429 and busy targets until the deadline.

    Args:
        repeat: Whether it may be sent again after an ambiguous end. False for requests without a request id that are not idempotent.

    Raises:
        GoogleError: The typed error, when waiting cannot help or the deadline has passed.
    """
    pause = pauses()
    while True:
        try:
            with translated(what):
                return send()
        except (Unavailable, NotReady) as error:
            ambiguous = isinstance(error, Unavailable) and error.ambiguous
            if deadline.passed or (ambiguous and not repeat):
                raise
            seconds = BUSY_SECONDS if isinstance(error, NotReady) else next(pause)
            _log.info("%s: %s; again in %.0f s", what, error.message, seconds)
            google.clock.sleep(min(seconds, max(0.1, deadline.left)))


def find(google: Google, what: str, send: Callable[[], T], deadline: Deadline) -> T | None:
    """`call` of a read; None where there is no such thing."""
    try:
        return call(google, what, send, deadline)
    except NotFound:
        return None


def wait(
    google: Google,
    what: str,
    read: Callable[[], T],
    done: Callable[[T], bool],
    deadline: Deadline,
    *,
    poll: float,
    watch: Callable[[], None] | None = None,
    state: Callable[[T], str] = str,
) -> T:
    """Read until done.

    Args:
        poll: Seconds between reads.
        watch: Called between reads; may raise what makes waiting useless.
        state: What the last read says, for the message.

    Raises:
        WaitedTooLong: At the deadline.
    """
    while True:
        value = call(google, what, read, deadline)
        if done(value):
            return value
        if watch:
            watch()
        if deadline.passed:
            raise WaitedTooLong(
                f"{what}: not done in time",
                found=state(value)[:500],
                next_move="look at it in the console; run again to go on waiting: nothing is repeated",
            )
        google.clock.sleep(min(poll, max(0.1, deadline.left)))


def ensure(
    google: Google,
    what: str,
    *,
    get: Callable[[], T | None],
    create: Callable[[int], None],
    settle: Callable[[T], T | None],
    deadline: Deadline,
) -> T:
    """The thing, created if need be; safe to begin again anywhere.

    Args:
        create: Sends the request of this serial and waits for its operation; its errors are typed.
        settle: Waits until the thing is usable; None if it went away meanwhile.
    """
    serial = 0
    pause = pauses()
    while True:
        found = get()
        if found is not None:
            settled = settle(found)
            if settled is not None:
                return settled
        else:
            try:
                create(serial)
                serial += 1
            except (Unavailable, NotReady) as error:
                _log.info("%s: %s; reading it again", what, error.message)
                if deadline.passed:
                    raise
                google.clock.sleep(BUSY_SECONDS if isinstance(error, NotReady) else next(pause))
                continue
            except Conflict as error:
                # Somebody made it between our read and our request: look again, unless the name is taken where we cannot see it.
                if type(error) is not Conflict or get() is None:
                    raise
        if deadline.passed:
            raise WaitedTooLong(f"{what}: still not there", next_move="run again; it resumes where it was")


def delete(
    google: Google,
    what: str,
    *,
    get: Callable[[], T | None],
    send: Callable[[int], None],
    deadline: Deadline,
) -> bool:
    """Delete it and look again until it is gone.

    Returns:
        True if this call had something to delete.

    Raises:
        WaitedTooLong: It is still there at the deadline; the message holds the last refusal.
    """
    serial, had, refusal = 0, False, ""
    pause = pauses()
    while get() is not None:
        had = True
        try:
            send(serial)
            serial += 1
        except NotFound:
            continue
        except (Unavailable, NotReady) as error:
            refusal = error.message
        if deadline.passed:
            raise WaitedTooLong(
                f"{what} is still there",
                found=refusal or "the delete operation ended but it is still listed",
                next_move="see what uses it in the console, then run cleanup again; nothing else was touched",
            )
        if refusal or serial > 1:
            google.clock.sleep(min(BUSY_SECONDS, next(pause)))
    if had:
        _log.info("%s is gone", what)
    return had
