"""Tasks killed while they wait, and run again: no duplicate, no leak."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.google import GoogleFakes
from tests.unit.resources.stand import Stand, stand
from tuneline.gcp.clients import Google

BUCKET = "b/demo-tuneline"
#: At which of all the waits of an undisturbed run the process is killed, as parts of their number.
PARTS = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.99)


class Killed(BaseException):
    """SIGKILL: nothing in the code may catch it."""


class KillingClock:
    """The fakes' clock; its `fatal`-th sleep (from 0) is the end. None counts only."""

    def __init__(self, clock: FakeClock, fatal: int | None = None) -> None:
        self._clock, self._fatal = clock, fatal
        self.sleeps = 0

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if self.sleeps == self._fatal:
            raise Killed
        self.sleeps += 1
        self._clock.sleep(seconds)


def with_clock(run: Stand, clock: KillingClock) -> Stand:
    """The same run in a new process."""
    google = Google("demo", endpoints=run.fakes.endpoints, credentials=run.fakes.credentials(), clock=clock)
    return Stand(run.fakes, google, run.spec, run.records, run.run_id)


def waits_of(system: str, action: Callable[[Stand], object], before: Callable[[Stand], object]) -> tuple[int, list[str]]:
    """How often an undisturbed action sleeps, and what there is then."""
    with GoogleFakes() as fakes:
        run = stand(fakes, Google("demo", endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock), system)
        before(run)
        clock = KillingClock(fakes.clock)
        action(with_clock(run, clock))
        return clock.sleeps, kinds(fakes)


def kinds(fakes: GoogleFakes) -> list[str]:
    """What there is of which kind; names that hold a cluster's id differ from cluster to cluster."""
    return sorted("/".join(path.split("/")[-2:-1]) for path in fakes.leftovers())


@pytest.mark.parametrize("system", ["standard", "a4x", "lustre"])
def test_killed_while_it_is_made(system: str) -> None:
    waits, undisturbed = waits_of(system, Stand.everything, lambda _: None)
    for part in PARTS:
        with GoogleFakes() as fakes:
            run = stand(fakes, Google("demo", endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock), system)
            with pytest.raises(Killed):
                with_clock(run, KillingClock(fakes.clock, int(part * waits))).everything()
            run.everything()
            assert kinds(fakes) == undisturbed, f"killed at wait {int(part * waits)} of {waits}"
            assert all(entry.created for entry in run.inventory.entries if entry.name != "default")
            run.teardown()
            assert fakes.leftovers() == [BUCKET]


@pytest.mark.parametrize("system", ["standard", "a4x", "lustre"])
def test_killed_while_it_goes(system: str) -> None:
    waits, _ = waits_of(system, Stand.teardown, Stand.everything)
    for part in PARTS:
        with GoogleFakes() as fakes:
            run = stand(fakes, Google("demo", endpoints=fakes.endpoints, credentials=fakes.credentials(), clock=fakes.clock), system)
            run.everything()
            with pytest.raises(Killed):
                with_clock(run, KillingClock(fakes.clock, int(part * waits))).teardown()
            run.teardown()
            assert fakes.leftovers() == [BUCKET], f"killed at wait {int(part * waits)} of {waits}"
