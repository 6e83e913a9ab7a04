"""Time: the only module that reads a clock or sleeps, so that tests never wait on real time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = SystemClock()


@dataclass(frozen=True)
class Deadline:
    """A moment after which waiting stops."""

    clock: Clock
    ends: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        return cls(clock, clock.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.ends - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        return self.clock.monotonic() >= self.ends


def utc(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339, UTC: 2026-11-30T20:33:15Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
