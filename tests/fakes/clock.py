"""A clock that moves only when someone sleeps on it."""

from __future__ import annotations

import threading

#: 2030-01-01T00:00:00Z. In the future, so that google-auth, which looks at the machine's clock, never finds a token of the fakes expired.
START = 1_893_456_000.0


class FakeClock:
    """Virtual time, shared by the code under test and the fakes.

    Threads sleep side by side: a sleep begins when its thread last looked at the clock, so eight threads that poll every 5 s
    together take 5 s a round, not 40.
    """

    def __init__(self, start: float = START) -> None:
        self._lock = threading.Lock()
        self._seen = threading.local()
        self._now = self._start = start

    def now(self) -> float:
        with self._lock:
            return self._look()

    def monotonic(self) -> float:
        return self.now() - self._start

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"cannot sleep {seconds} s")
        with self._lock:
            self._now = max(self._now, getattr(self._seen, "at", self._now) + seconds)
            self._look()

    def advance(self, seconds: float) -> None:
        """Move by `seconds` whatever the threads saw: what a test does to let time pass."""
        with self._lock:
            self._now += seconds
            self._look()

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the clock was made."""
        return self.monotonic()

    def _look(self) -> float:
        self._seen.at = self._now
        return self._now
