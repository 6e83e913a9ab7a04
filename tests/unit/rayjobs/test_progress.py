from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.rayjobs import FakeClock, FakeEngine
from tuneline.rayjobs.progress import Progress


class Room:
    def __init__(self, root: Path) -> None:
        self.metrics, self.events_file, self.clock = root / "metrics.jsonl", root / "events.jsonl", FakeClock()

    def progress(self, step: int = 0) -> Progress:
        return Progress(FakeEngine(), self.metrics, total=10, step=step, clock=self.clock)

    def write(self, text: str) -> None:
        with open(self.metrics, "a") as handle:
            handle.write(text)

    def events(self) -> list[dict[str, Any]]:
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [{name: value for name, value in json.loads(line).items() if name not in ("at", "kind")} for line in lines]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    made = Room(tmp_path)
    monkeypatch.setenv("TUNELINE_EVENTS", str(made.events_file))
    return made


def test_before_the_first_metrics_the_step_is_where_the_attempt_starts(room: Room) -> None:
    assert room.progress(step=4)() == 4
    assert room.events() == []


def test_each_new_line_is_one_event(room: Room) -> None:
    progress = room.progress()
    room.write('{"step": 1, "reward_mean": 0.25, "tokens_per_s": 80.0, "step_time": 2.0}\n{"step": 2, "step_time": 4.0}\n')
    assert progress() == 2
    assert progress() == 2
    assert room.events() == [
        {"step": 1, "of": 10, "reward": 0.25, "tokens_per_s": 80.0, "eta_s": 27.0},
        {"step": 2, "of": 10, "eta_s": 24.0},
    ]


def test_a_line_that_is_still_being_written_waits(room: Room) -> None:
    progress = room.progress()
    room.write('{"step": 1}\n{"st')
    assert progress() == 1
    room.write('ep": 2}\n')
    assert progress() == 2


def test_without_step_times_the_clock_tells_what_is_left(room: Room) -> None:
    progress = room.progress()
    room.write('{"step": 1}\n')
    progress()
    room.clock.sleep(6)
    room.write('{"step": 4, "eval_score": 0.5}\n')
    progress()
    assert room.events()[-1] == {"step": 4, "of": 10, "eta_s": 12.0, "eval_score": 0.5}


def test_one_log_line_a_batch(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    progress = room.progress()
    with caplog.at_level("INFO", logger="tuneline"):
        room.write("".join(f'{{"step": {step}, "reward_mean": 0.5, "step_time": 1.0}}\n' for step in (1, 2, 3)))
        progress()
    assert [record.getMessage() for record in caplog.records] == ["step 3/10  reward 0.500  left 7 s"]
