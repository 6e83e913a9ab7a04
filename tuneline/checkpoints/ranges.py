"""Reads of objects ahead of their use: neighbours are fetched as one range, many ranges at a time, in bounded memory."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tuneline.checkpoints.disk import Bytes

#: A range grows to this; a gap of less between two reads is fetched along with them.
RANGE_BYTES = 16 << 20
GAP_BYTES = 256 << 10
CONNECTIONS = 16
#: Ranges of one object that may grow at a time: shards that are written side by side read it at as many places.
_GROWING = 4
#: Ranges that are fetched or waiting to be used hold no more than this, unless a reader needs one at once.
BUDGET_BYTES = 128 << 20


class Remote(Protocol):
    """Bytes that are far away."""

    def download(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset` on."""


@dataclass(eq=False)
class _Range:
    source: Remote
    start: int
    end: int
    uses: int = 1
    sealed: bool = False
    future: Future[Bytes] | None = field(default=None)


class Ranges:
    """Shared by all objects of a folder."""

    def __init__(self, *, range_bytes: int = RANGE_BYTES, budget_bytes: int = BUDGET_BYTES, connections: int = CONNECTIONS) -> None:
        self._range_bytes = range_bytes
        self._budget = budget_bytes
        self._held = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(connections, "fetch")
        self._known: dict[int, list[_Range]] = {}
        self._waiting: list[_Range] = []

    def expect(self, source: Remote, offset: int, length: int) -> None:
        """`length` bytes from `offset` on will be fetched once."""
        with self._lock:
            ranges = self._known.setdefault(id(source), [])
            growing = [each for each in ranges if not each.sealed]
            for each in reversed(growing):
                if 0 <= offset - each.end <= GAP_BYTES and offset + length - each.start <= self._range_bytes:
                    each.end = offset + length
                    each.uses += 1
                    break
            else:
                if len(growing) == _GROWING:
                    growing[0].sealed = True
                ranges.append(_Range(source, offset, offset + length))
                self._waiting.append(ranges[-1])
            self._start_what_fits()

    def fetch(self, source: Remote, offset: int, length: int) -> Bytes | None:
        """The bytes, None if nobody expected them."""
        with self._lock:
            ranges = self._known.get(id(source), [])
            found = next((each for each in ranges if each.start <= offset and offset + length <= each.end), None)
            if found is None:
                return None
            found.sealed = True
            if found.future is None:
                self._waiting.remove(found)
                self._start(found)
            future = found.future
        assert future is not None
        data = future.result()
        with self._lock:
            found.uses -= 1
            if not found.uses:
                ranges.remove(found)
                self._held -= found.end - found.start
                self._start_what_fits()
        return data[offset - found.start : offset - found.start + length]

    def _start_what_fits(self) -> None:
        for each in [each for each in self._waiting if each.sealed]:
            if self._held + each.end - each.start > self._budget:
                return
            self._waiting.remove(each)
            self._start(each)

    def _start(self, found: _Range) -> None:
        self._held += found.end - found.start

        def download() -> Bytes:
            data = np.empty(found.end - found.start, np.uint8)
            found.source.download(found.start, data.data)
            return data

        found.future = self._pool.submit(download)

    def close(self) -> None:
        """Stop; what is under way is waited for."""
        self._pool.shutdown(cancel_futures=True)
