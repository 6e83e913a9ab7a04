from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.rayjobs import FakeClock, FakeEngine, write_checkpoint
from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.rayjobs.attempts import Attempts, SavedLog, final_checkpoint

KEY = "k1"


class Room:
    def __init__(self, root: Path) -> None:
        self.store, self.clock, self.engine = Store(str(root)), FakeClock(), FakeEngine()

    def attempts(self, run_id: str = "tlaaa", key: str = KEY, **spec: object) -> Attempts:
        parameters = {"train_steps": 40, "train_save_every": 10, **spec}
        return Attempts(RunSpec.build(parameters), self.store, run_id, key, self.engine, clock=self.clock)

    def write(self, name: str, step: int, *, key: str = KEY, complete: bool = True) -> str:
        return str(write_checkpoint(Path(self.store.attempt(key, name)), step, complete=complete))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_numbers_start_at_one_and_a_folder_uses_one_up(room: Room) -> None:
    attempts = room.attempts()
    assert (attempts.latest(), attempts.next(), attempts.used()) == (0, 1, 0)
    attempts.directory(1)
    assert (attempts.latest(), attempts.next(), attempts.used()) == (1, 2, 1)
    assert attempts.name(2) == "tlaaa-a2"


def test_a_retry_sees_the_attempts_of_its_forerunner(room: Room) -> None:
    room.attempts().directory(1)
    retry = room.attempts()
    assert (retry.latest(), retry.used(), retry.first) == (1, 1, 1)


def test_numbers_are_never_used_twice_over_the_keys_of_a_run(room: Room) -> None:
    room.attempts(key="k1").directory(1)
    other = room.attempts(key="k2")
    assert (other.latest(), other.next(), other.first) == (0, 2, 2)


def test_a_run_started_again_after_its_end_has_a_whole_budget(room: Room) -> None:
    room.attempts().directory(1)
    Attempts.close(room.store, "tlaaa")
    room.clock.sleep(1e6)
    again = room.attempts(train_deadline_hours=1.0)
    assert (again.latest(), again.used(), again.first, again.next()) == (0, 0, 2, 2)
    assert again.deadline.left == 3600


def test_the_deadline_spans_retries(room: Room) -> None:
    room.attempts(train_deadline_hours=2.0)
    room.clock.sleep(3600)
    retry = room.attempts(train_deadline_hours=2.0)
    assert retry.deadline.left == 3600
    room.clock.sleep(3600)
    assert retry.deadline.passed


def test_other_runs_and_strange_folders_are_no_attempts(room: Room) -> None:
    for name in ("tlbbb-a7", "tlaaa-ax", "tlaaa-a"):
        Path(room.store.attempt(KEY, name)).mkdir(parents=True)
    assert room.attempts().next() == 1


def test_the_newest_complete_checkpoint_over_all_attempts_and_runs(room: Room) -> None:
    room.write("tlbbb-a1", 10)
    newest = room.write("tlbbb-a2", 20)
    room.write("tlaaa-a1", 10)
    room.write("tlaaa-a1", 30, complete=False)
    found = room.attempts().newest()
    assert found is not None
    assert found.path == newest
    assert room.attempts().final() is None


def test_forced_training_sees_only_the_attempts_of_its_own_budget(room: Room) -> None:
    room.write("tlbbb-a1", 40)
    room.write("tlaaa-a1", 40)
    assert room.attempts().final() is not None
    Attempts.close(room.store, "tlaaa")
    forced = room.attempts(train_force=True)
    assert forced.first == 2
    assert forced.final() is None
    assert forced.newest() is None
    own = room.write("tlaaa-a2", 20)
    retry = room.attempts(train_force=True).newest()
    assert retry is not None
    assert retry.path == own


def test_the_final_checkpoint_is_complete_and_of_the_planned_step(room: Room) -> None:
    spec = RunSpec.build({"train_steps": 40, "train_save_every": 10})
    room.write("tlaaa-a1", 40, complete=False)
    room.write("tlaaa-a1", 50)
    assert final_checkpoint(room.store, KEY, room.engine, spec) is None
    path = room.write("tlaaa-a2", 40)
    found = final_checkpoint(room.store, KEY, room.engine, spec)
    assert found is not None
    assert found.path == path


def test_an_attempt_is_untouched_until_it_wrote_or_said_something(room: Room) -> None:
    attempts = room.attempts()
    assert attempts.untouched(1)
    attempts.log(1).append("Traceback")
    assert not attempts.untouched(1)
    (attempts.directory(2) / "metrics.jsonl").touch()
    assert not attempts.untouched(2)


def test_a_saved_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    log = SavedLog(tmp_path / "logs" / "a.log")
    assert (log.offset, log.tail(3)) == (0, [])
    log.append("äöü\r\none\n")
    log.append("two\n")
    again = SavedLog(log.path)
    assert again.offset == log.offset == len("äöü\r\none\ntwo\n")
    assert again.tail(2) == ["one", "two"]


def test_the_tail_of_a_log_without_end_is_short(tmp_path: Path) -> None:
    log = SavedLog(tmp_path / "a.log")
    log.append("ü" * 300_000 + "\n" + "x" * 300_000 + "!\nlast\n")
    long, last = log.tail(2)
    assert last == "last"
    assert long == "x" * (len(long) - 1) + "!"
    assert len(long) == 500


def test_a_character_cut_by_a_kill_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes("whole ü".encode() + "ü".encode()[:1])
    log = SavedLog(path)
    assert log.offset == len("whole ü")
    log.append("ü!")
    assert path.read_text() == "whole üü!"
