from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.fakes.rayjobs import FakeClock
from tuneline.core.clock import Deadline
from tuneline.core.errors import JobDeadline
from tuneline.rayjobs.lock import Writer, WriterLock, is_alive
from tuneline.rayjobs.processes import start_time


class Room:
    def __init__(self, root: Path) -> None:
        self.path, self.clock = root / "key" / "writer.json", FakeClock()
        self.living = {"tlaaa", "tlbbb"}

    def lock(self, run_id: str) -> WriterLock:
        return WriterLock(self.path, run_id, alive=lambda writer: writer.run_id in self.living, clock=self.clock)

    def acquire(self, run_id: str, seconds: float = 100) -> None:
        self.lock(run_id).acquire(Deadline.after(self.clock, seconds))

    def holder(self) -> str:
        holder = self.lock("x").holder()
        return holder.run_id if holder else ""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_taken_and_given_back(room: Room) -> None:
    room.acquire("tlaaa")
    holder = room.lock("tlaaa").holder()
    assert holder == Writer("tlaaa", platform.node(), os.getpid(), start_time(os.getpid()))
    room.lock("tlaaa").release()
    assert room.holder() == ""
    room.lock("tlaaa").release()


def test_the_retry_of_the_same_run_takes_its_own_lock_at_once(room: Room) -> None:
    room.acquire("tlaaa")
    before = room.clock.time
    room.acquire("tlaaa")
    assert room.clock.time == before


def test_another_living_run_is_waited_for(room: Room) -> None:
    room.acquire("tlaaa")
    room.clock.after(30, room.lock("tlaaa").release)
    room.acquire("tlbbb")
    assert room.holder() == "tlbbb"
    assert room.clock.time == 1_000_030


def test_a_dead_runs_lock_is_taken_over(room: Room) -> None:
    room.acquire("tlaaa")
    room.clock.after(10, lambda: room.living.discard("tlaaa"))
    room.acquire("tlbbb")
    assert room.holder() == "tlbbb"
    assert room.clock.time == 1_000_010


def test_of_two_that_find_a_dead_holder_one_gets_it(room: Room) -> None:
    room.acquire("tldead")
    room.acquire("tlaaa")
    with pytest.raises(JobDeadline, match="run tlaaa still trains the same"):
        room.acquire("tlbbb", seconds=20)
    assert room.holder() == "tlaaa"


def test_only_the_holder_gives_it_back(room: Room) -> None:
    room.acquire("tlaaa")
    room.lock("tlbbb").release()
    assert room.holder() == "tlaaa"


def test_who_counts_as_alive() -> None:
    here, me = platform.node(), os.getpid()
    parent = os.getppid()
    assert is_alive(Writer("tlnone", here, parent, start_time(parent)))
    assert is_alive(Writer("tlnone", "another-computer", 1, 0.0))
    assert not is_alive(Writer("tlnone", here, me, start_time(me))), "the caller itself holds nothing for another run"
    assert not is_alive(Writer("tlnone", here, parent, start_time(parent) - 1000)), "a pid that was used again"
