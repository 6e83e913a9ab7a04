"""Waiting, repeating and reading again, on a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as api

from tests.fakes.clock import FakeClock
from tuneline.core.clock import Deadline
from tuneline.gcp import calls, errors
from tuneline.gcp.clients import Google
from tuneline.gcp.operations import request_id


@pytest.fixture
def google() -> Google:
    return Google("demo", clock=FakeClock())


def script(*answers: Any) -> Callable[..., Any]:
    """A function that gives these answers one after another; exceptions are raised."""
    left = list(answers)

    def send(*_: Any) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return send


def soon(google: Google, seconds: float = 600) -> Deadline:
    return Deadline.after(google.clock, seconds)


def test_a_storm_is_waited_out_with_growing_pauses(google: Google) -> None:
    begun = google.clock.monotonic()
    storm = [api.ServiceUnavailable("x")] * 4
    assert calls.call(google, "x", script(*storm, "done"), soon(google)) == "done"
    assert google.clock.monotonic() - begun == 1 + 2 + 4 + 8


def test_a_storm_without_end_ends_at_the_deadline(google: Google) -> None:
    with pytest.raises(errors.Unavailable):
        calls.call(google, "x", script(api.ServiceUnavailable("x")), soon(google))
    assert 600 <= google.clock.monotonic() < 601


def test_what_is_not_idempotent_is_not_repeated_after_an_ambiguous_end(google: Google) -> None:
    with pytest.raises(errors.Unavailable):
        calls.call(google, "x", script(api.ServiceUnavailable("x"), "done"), soon(google), repeat=False)
    assert calls.call(google, "x", script(api.TooManyRequests("too many requests"), "done"), soon(google), repeat=False) == "done"


def test_a_busy_target_is_waited_for(google: Google) -> None:
    busy = api.FailedPrecondition("Cluster is running incompatible operation operation-1-2.")
    assert calls.call(google, "x", script(busy, busy, "done"), soon(google), repeat=False) == "done"
    assert google.clock.monotonic() == 2 * calls.BUSY_SECONDS


def test_what_waiting_cannot_help_is_raised_at_once(google: Google) -> None:
    with pytest.raises(errors.Permission):
        calls.call(google, "x", script(api.Forbidden("no")), soon(google))
    assert google.clock.monotonic() == 0


def test_ensure_reads_again_before_it_sends_again(google: Google) -> None:
    sent = []

    def create(serial: int) -> None:
        sent.append(serial)
        raise errors.Unavailable("lost", ambiguous=True)

    found = calls.ensure(google, "x", get=script(None, "there"), create=create, settle=lambda value: value, deadline=soon(google))
    assert (found, sent) == ("there", [0])


def test_ensure_adopts_what_somebody_made_in_between(google: Google) -> None:
    create = script(errors.Conflict("taken"))
    assert calls.ensure(google, "x", get=script(None, "there"), create=create, settle=lambda value: value, deadline=soon(google)) == "there"


@pytest.mark.parametrize("kind", [errors.Conflict, errors.ReservationMismatch])
def test_ensure_raises_what_it_cannot_see(google: Google, kind: type[errors.Conflict]) -> None:
    with pytest.raises(kind):
        calls.ensure(google, "x", get=lambda: None, create=script(kind("taken")), settle=lambda value: value, deadline=soon(google))


def test_ensure_takes_a_new_serial_when_what_was_made_is_gone(google: Google) -> None:
    sent: list[int] = []
    get = script(None, None, "there")
    assert calls.ensure(google, "x", get=get, create=sent.append, settle=lambda value: value, deadline=soon(google)) == "there"
    assert sent == [0, 1]


def test_delete_looks_until_it_is_gone_and_says_what_keeps_it(google: Google) -> None:
    assert calls.delete(google, "x", get=script("x", "x", None), send=script(errors.InUse("by y"), None), deadline=soon(google))
    assert not calls.delete(google, "x", get=lambda: None, send=script(None), deadline=soon(google))
    with pytest.raises(errors.WaitedTooLong, match="x is still there") as caught:
        calls.delete(google, "x", get=lambda: "x", send=script(errors.InUse("used by y")), deadline=soon(google))
    assert "used by y" in caught.value.found


def test_wait_says_the_last_state_at_its_deadline(google: Google) -> None:
    with pytest.raises(errors.WaitedTooLong) as caught:
        calls.wait(google, "x", lambda: "CREATING", lambda _: False, soon(google), poll=10)
    assert caught.value.found == "CREATING"


def test_request_ids_are_the_same_for_the_same_and_only_then() -> None:
    first = request_id("run", "networks/n")
    assert first == request_id("run", "networks/n")
    assert len({first, request_id("run2", "networks/n"), request_id("run", "networks/m"), request_id("run", "networks/n", 1)}) == 4
