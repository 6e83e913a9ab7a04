from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.rayjobs import FakeClock, FakeRunner
from tuneline.core.clock import Deadline
from tuneline.core.errors import JobDeadline, JobError, JobGuarded, JobStalled
from tuneline.rayjobs.base import JobState, JobStatus
from tuneline.rayjobs.watch import watch

NAME = "tlx-a1"


class Watched:
    def __init__(self, state: JobState = JobState.RUNNING) -> None:
        self.clock = FakeClock()
        self.runner = FakeRunner(jobs={NAME: JobStatus(state)})
        self.step = 0
        self.text = ""

    def becomes(self, seconds: float, state: JobState) -> None:
        self.clock.after(seconds, lambda: self.runner.jobs.update({NAME: JobStatus(state, "its message")}))

    def steps(self, seconds: float) -> None:
        def one() -> None:
            self.step += 1

        self.clock.after(seconds, one)

    def writes(self, seconds: float, text: str) -> None:
        self.clock.after(seconds, lambda: self.runner.output.update({NAME: self.runner.output.get(NAME, "") + text}))

    def take(self, text: str) -> None:
        self.text += text

    def run(
        self, stall: float = 60, hours: float = 10, log_offset: int = 0, guard: Callable[[], JobError | None] = lambda: None
    ) -> JobStatus:
        return watch(
            self.runner,
            NAME,
            progress=lambda: self.step,
            stall_seconds=stall,
            deadline=Deadline.after(self.clock, hours * 3600),
            on_log=self.take,
            log_offset=log_offset,
            guard=guard,
            clock=self.clock,
        )


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.UNKNOWN])
def test_returns_the_state_in_which_the_job_ended(state: JobState) -> None:
    watched = Watched()
    watched.becomes(5, state)
    assert watched.run() == JobStatus(state, "its message")
    assert watched.runner.stopped == []


def test_a_lost_head_is_a_status() -> None:
    watched = Watched()
    watched.clock.after(3, lambda: setattr(watched.runner, "lost", True))
    assert watched.run().state is JobState.HEAD_LOST


def test_each_character_of_the_log_comes_once_and_the_last_ones_too() -> None:
    watched = Watched()
    watched.writes(2, "one ü\n")
    watched.writes(4.5, "two\n")
    watched.becomes(4.6, JobState.SUCCEEDED)
    watched.run()
    assert watched.text == "one ü\ntwo\n"


def test_the_log_goes_on_from_what_is_saved() -> None:
    watched = Watched()
    watched.writes(1, "saved before, new")
    watched.becomes(3, JobState.SUCCEEDED)
    watched.run(log_offset=len("saved before, "))
    assert watched.text == "new"


def test_a_lost_log_never_fails_a_job_and_comes_back_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    read, failures = watched.runner.logs, iter(range(3))

    def logs(name: str, offset: int) -> tuple[str, int]:
        if next(failures, None) is not None:
            raise ConnectionError("websocket closed")
        return read(name, offset)

    monkeypatch.setattr(watched.runner, "logs", logs)
    watched.writes(1, "all of it")
    watched.becomes(10, JobState.SUCCEEDED)
    assert watched.run().state is JobState.SUCCEEDED
    assert watched.text == "all of it"


def test_text_that_could_not_be_saved_is_offered_again() -> None:
    watched = Watched()
    taken: list[str] = []

    def take(text: str) -> None:
        if watched.clock.time < 1_000_005:
            raise OSError("disk full")
        taken.append(text)

    watched.take = take  # type: ignore[method-assign]
    watched.writes(1, "text")
    watched.becomes(10, JobState.SUCCEEDED)
    watched.run()
    assert taken == ["text"]


def test_no_new_step_stops_the_job_and_names_step_and_minutes() -> None:
    watched = Watched()
    for second in (10, 20, 30):
        watched.steps(second)
    with pytest.raises(JobStalled, match=r"no new step for 2 minutes, last step 3"):
        watched.run(stall=120)
    assert watched.runner.stopped == [NAME]
    assert watched.clock.time == pytest.approx(1_000_000 + 30 + 120, abs=2)


def test_steps_that_go_on_are_no_stall() -> None:
    watched = Watched()
    for second in range(50, 1000, 50):
        watched.steps(second)
    watched.becomes(1000, JobState.SUCCEEDED)
    assert watched.run(stall=60).state is JobState.SUCCEEDED


def test_pending_for_ever_is_a_stall() -> None:
    watched = Watched(JobState.PENDING)
    with pytest.raises(JobStalled) as raised:
        watched.run(stall=60)
    assert "PENDING" in raised.value.found


def test_the_deadline_stops_a_job_that_goes_on() -> None:
    watched = Watched()
    for second in range(30, 7200, 30):
        watched.steps(second)
    with pytest.raises(JobDeadline, match="at step 12"):
        watched.run(stall=60, hours=0.1)
    assert watched.runner.stopped == [NAME]


def test_a_job_that_succeeds_while_it_is_stopped_has_succeeded() -> None:
    watched = Watched()
    watched.runner.state_after_stop = JobState.SUCCEEDED
    assert watched.run(stall=10).state is JobState.SUCCEEDED


def test_a_guard_stops_the_job() -> None:
    watched = Watched()
    for second in range(1, 9):
        watched.steps(second)
    with pytest.raises(JobGuarded, match="flat"):
        watched.run(guard=lambda: JobGuarded("flat") if watched.step == 5 else None)
    assert watched.step == 5
    assert watched.runner.stopped == [NAME]
