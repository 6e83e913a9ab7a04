"""Faults on purpose: which calls fail, how, and how often."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.errors import ApiError


@dataclass
class Fault:
    """One fault.

    Attributes:
        pattern: Method ids that it meets, as a glob: `compute.networks.*`.
        times: How many more calls it meets; None for all until `until`.
        until: Virtual moment at which it ends, None for never.
        after: Whether the call takes effect first and only its answer is lost.
        error: What the caller gets; None closes the connection without an answer.
        slow: Virtual seconds that pass before the call is looked at.
        matching: Words that the path or body must contain, '' for any.
    """

    pattern: str
    times: int | None = 1
    until: float | None = None
    after: bool = False
    error: Callable[[], ApiError] | None = None
    slow: float = 0.0
    matching: str = ""

    def meets(self, method: str, text: str, now: float) -> bool:
        """Whether it meets this call; it then counts as met."""
        spent = self.times == 0 or (self.until is not None and now >= self.until)
        if spent or not fnmatch.fnmatchcase(method, self.pattern) or self.matching not in text:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Faults:
    """The faults of a test, tried in the order in which they were set."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def find(self, method: str, text: str, now: float) -> Fault | None:
        return next((fault for fault in self._faults if fault.meets(method, text, now)), None)

    def clear(self) -> None:
        self._faults.clear()

    def unmet(self) -> list[Fault]:
        """Faults with a count that met fewer calls than they should: a test that asserts this is empty proves that its faults fired."""
        return [fault for fault in self._faults if fault.times]
