from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.rayjobs import FakeClock, FakeCluster, FakeEngine, FakeRunner, write_checkpoint, write_metrics
from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import Deadline
from tuneline.core.errors import ClusterError, JobDeadline, JobError, JobGuarded, JobStalled
from tuneline.engines import metrics, verl_log
from tuneline.engines.base import Checkpoint, Follow, TrainingInputs
from tuneline.rayjobs.attempts import Attempts
from tuneline.rayjobs.base import JobState, JobStatus
from tuneline.rayjobs.lock import WriterLock
from tuneline.tasks.train import train

KEY = "k"
INPUTS = TrainingInputs(job_name="", base_dir="/base", dataset_dir="/data", code_dir="", attempt_dir="")
Act = Callable[[FakeRunner, str], None]


class Room:
    """A store, a clock and a cluster whose jobs act as the test planned, attempt by attempt."""

    def __init__(self, root: Path) -> None:
        self.store, self.clock, self.engine = Store(str(root)), FakeClock(), FakeEngine()
        self.acts: list[Act] = []
        self.runners: list[FakeRunner] = []
        self.cluster = FakeCluster(start=self.start_head)
        self.living = {"tlbbb"}

    def start_head(self) -> FakeRunner:
        runner = FakeRunner()

        def on_submit(name: str) -> None:
            act = self.acts.pop(0)
            self.clock.after(5, lambda: act(runner, name))

        runner.on_submit = on_submit
        self.runners.append(runner)
        return runner

    def folder(self, name: str) -> Path:
        return Path(self.store.attempt(KEY, name))

    def lock(self, run_id: str) -> WriterLock:
        return WriterLock(Path(self.store.writer(KEY)), run_id, alive=lambda writer: writer.run_id in self.living, clock=self.clock)

    def train(self, **spec: object) -> Checkpoint:
        built = RunSpec.build({"train_steps": 40, "train_save_every": 10, "train_stall_minutes": 10.0, **spec})
        return train(built, self.store, "tlaaa", KEY, self.engine, INPUTS, clock=self.clock, cluster=self.cluster, lock=self.lock("tlaaa"))

    def ends(self, state: JobState, *, saves: tuple[int, ...] = (), message: str = "", says: str = "") -> Act:
        """The job saves these steps, then ends in this state."""

        def act(runner: FakeRunner, name: str) -> None:
            for step in saves:
                write_metrics(self.folder(name), step)
                write_checkpoint(self.folder(name), step)
            runner.output[name] = says
            if state is JobState.HEAD_LOST:
                runner.lost = True
            else:
                runner.jobs[name] = JobStatus(state, message)

        return act

    def resumed_from(self, name: str) -> str:
        (request,) = [runner.requests[name] for runner in self.runners if name in runner.requests]
        return request.metadata["resume_from"]

    @property
    def submitted(self) -> list[str]:
        return [name for runner in self.runners for name in runner.requests]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_trains_to_the_last_step(room: Room) -> None:
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(10, 20, 30, 40))]
    checkpoint = room.train()
    assert (checkpoint.step, checkpoint.complete, checkpoint.path) == (40, True, str(room.folder("tlaaa-a1") / "step_40"))
    assert room.resumed_from("tlaaa-a1") == ""
    assert room.runners[0].requests["tlaaa-a1"].metadata["base_dir"] == "/base"
    assert room.lock("x").holder() is None


def test_a_complete_training_starts_no_job(room: Room) -> None:
    done = write_checkpoint(room.folder("tlbbb-a1"), 40)
    assert room.train().path == str(done)
    assert room.cluster.calls == []


def test_a_failed_attempt_is_followed_by_one_from_the_newest_complete_checkpoint(room: Room) -> None:
    def fails_while_saving(runner: FakeRunner, name: str) -> None:
        room.ends(JobState.FAILED, saves=(10, 20))(runner, name)
        write_checkpoint(room.folder(name), 30, complete=False)

    room.acts = [fails_while_saving, room.ends(JobState.SUCCEEDED, saves=(30, 40))]
    assert room.train().step == 40
    assert room.submitted == ["tlaaa-a1", "tlaaa-a2"]
    assert room.resumed_from("tlaaa-a2") == str(room.folder("tlaaa-a1") / "step_20")
    assert room.runners[0].stopped == ["tlaaa-a1"], "nothing of the failed job may still write"
    assert len(room.runners) == 1


def test_another_runs_checkpoints_are_resumed(room: Room) -> None:
    other = write_checkpoint(room.folder("tlbbb-a2"), 30)
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(40,))]
    room.train()
    assert room.resumed_from("tlaaa-a1") == str(other)


def test_a_live_job_of_the_run_is_adopted(room: Room) -> None:
    runner = room.cluster.renew()
    runner.jobs["tlaaa-a1"] = JobStatus(JobState.RUNNING)
    Attempts(RunSpec.build({}), room.store, "tlaaa", KEY, room.engine, clock=room.clock).directory(1)
    room.clock.after(50, lambda: room.ends(JobState.SUCCEEDED, saves=(40,))(runner, "tlaaa-a1"))
    assert room.train().step == 40
    assert room.submitted == []


def test_a_number_whose_job_was_never_submitted_is_used(room: Room) -> None:
    room.cluster.renew()
    Attempts(RunSpec.build({}), room.store, "tlaaa", KEY, room.engine, clock=room.clock).directory(1)
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train(train_attempts=1).step == 40
    assert room.submitted == ["tlaaa-a1"]


def test_a_lost_head_is_replaced_and_the_next_attempt_resumes(room: Room) -> None:
    room.acts = [room.ends(JobState.HEAD_LOST, saves=(10,)), room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train().step == 40
    assert len(room.runners) == 2
    assert room.submitted == ["tlaaa-a1", "tlaaa-a2"]
    assert room.resumed_from("tlaaa-a2") == str(room.folder("tlaaa-a1") / "step_10")


def test_a_head_lost_before_the_retry_is_replaced(room: Room) -> None:
    attempts = Attempts(RunSpec.build({}), room.store, "tlaaa", KEY, room.engine, clock=room.clock)
    write_metrics(attempts.directory(1), 3)
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train().step == 40
    assert room.submitted == ["tlaaa-a2"]


def test_a_head_that_refuses_the_job_is_replaced_and_uses_an_attempt(room: Room) -> None:
    refusing = room.cluster.renew()
    refusing.refuses = True
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train(train_attempts=2).step == 40
    assert room.submitted == ["tlaaa-a2"]


def test_a_head_that_never_comes_up_is_an_error_and_keeps_the_lock_until_the_run_is_gone(room: Room) -> None:
    def fails() -> FakeRunner:
        raise ClusterError("the Ray head ended while starting")

    room.cluster.start = fails
    with pytest.raises(ClusterError):
        room.train()
    holder = room.lock("x").holder()
    assert holder is not None
    assert holder.run_id == "tlaaa"


def test_when_all_attempts_failed_the_error_has_the_reason_and_the_last_lines(room: Room) -> None:
    message = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\nmuch"
    says = "".join(f"line {number}\n" for number in range(50)) + "ValueError: no rewards\n"
    room.acts = [room.ends(JobState.FAILED), room.ends(JobState.FAILED, saves=(10,), message=message, says=says)]
    with pytest.raises(JobError) as raised:
        room.train(train_attempts=2)
    text = str(raised.value)
    assert "failed in 2 of 2 attempts; the last one: FAILED: Job entrypoint command failed with exit code 1\n" in text
    assert "newest complete checkpoint: step 10" in text
    assert "ValueError: no rewards" in text
    assert "line 31\n" in text
    assert "line 30\n" not in text
    assert room.lock("x").holder() is None


def test_a_retry_after_all_attempts_failed_fails_at_once(room: Room) -> None:
    room.acts = [room.ends(JobState.FAILED)]
    for _ in range(2):
        with pytest.raises(JobError, match="1 of 1"):
            room.train(train_attempts=1)
    assert room.submitted == ["tlaaa-a1"]


def test_a_stall_uses_an_attempt(room: Room) -> None:
    room.acts = [lambda runner, name: None, room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train().step == 40
    assert room.runners[0].stopped[0] == "tlaaa-a1"
    assert room.submitted == ["tlaaa-a1", "tlaaa-a2"]


def test_a_stall_in_the_last_attempt_is_told_as_one(room: Room) -> None:
    room.acts = [lambda runner, name: None]
    for _ in range(2):  # a retry of the task finds the job stopped, and still says why
        with pytest.raises(JobStalled, match="no new step for 10"):
            room.train(train_attempts=1)
    assert room.submitted == ["tlaaa-a1"]


def prints(lines: list[str]) -> Act:
    def act(runner: FakeRunner, name: str) -> None:
        runner.output[name] = "\n".join(lines) + "\n"

    return act


class PrintingEngine(FakeEngine):
    """Metrics in the log, as verl's are."""

    metrics_in_log = True

    def follow(self, start: int = 0) -> Follow:
        return verl_log.Follower()


def test_a_guard_ends_the_training_and_keeps_the_checkpoint_and_the_series(room: Room) -> None:
    room.engine = PrintingEngine()
    write_checkpoint(room.folder("tlbbb-a1"), 10)
    line = "(TaskRunner pid=1) step:{} - critic/score/mean:0.0 - critic/score/max:0.0 - critic/score/min:0.0"
    room.acts = [prints([line.format(step) for step in range(11, 17)])]
    with pytest.raises(JobGuarded, match=r"tlaaa-a1 was stopped \(flat-reward\).*same reward for 6 steps") as raised:
        room.train(train_flat_steps=5)
    assert "newest complete checkpoint: step 10" in raised.value.found
    assert room.runners[0].stopped == ["tlaaa-a1"]
    assert room.submitted == ["tlaaa-a1"]
    series = metrics.read_series(room.folder("tlaaa-a1").parent)
    assert [(row["step"], row["reward_mean"]) for row in series] == [(step, 0.0) for step in range(11, 17)]


def test_success_short_of_the_plan_is_an_error(room: Room) -> None:
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(10, 30))]
    with pytest.raises(JobError, match="short of the last step") as raised:
        room.train()
    assert "step 40" in raised.value.asked
    assert "step 30" in raised.value.found
    assert room.submitted == ["tlaaa-a1"]


def test_a_job_that_fails_after_its_last_checkpoint_is_done(room: Room) -> None:
    room.acts = [room.ends(JobState.FAILED, saves=(40,))]
    assert room.train().step == 40


def test_the_deadline_spans_all_attempts(room: Room) -> None:
    room.acts = [lambda runner, name: None, room.ends(JobState.SUCCEEDED, saves=(40,))]
    with pytest.raises(JobDeadline):
        room.train(train_deadline_hours=0.1, train_stall_minutes=60.0)
    assert room.runners[0].jobs["tlaaa-a1"].state is JobState.STOPPED
    with pytest.raises(JobDeadline, match="before attempt 2"):
        room.train(train_deadline_hours=0.1)
    assert room.submitted == ["tlaaa-a1"]


def test_waits_for_another_run_and_takes_what_it_trained(room: Room) -> None:
    other = room.lock("tlbbb")
    other.acquire(Deadline.after(room.clock, 1))

    def finishes() -> None:
        write_checkpoint(room.folder("tlbbb-a1"), 40)
        other.release()

    room.clock.after(120, finishes)
    assert room.train().path == str(room.folder("tlbbb-a1") / "step_40")
    assert room.submitted == []


def test_forced_training_ignores_other_runs_and_resumes_its_own(room: Room) -> None:
    write_checkpoint(room.folder("tlbbb-a1"), 40)
    room.acts = [room.ends(JobState.FAILED, saves=(10,)), room.ends(JobState.SUCCEEDED, saves=(40,))]
    assert room.train(train_force=True).path == str(room.folder("tlaaa-a2") / "step_40")
    assert room.resumed_from("tlaaa-a1") == ""
    assert room.resumed_from("tlaaa-a2") == str(room.folder("tlaaa-a1") / "step_10")


def test_the_jobs_log_is_saved(room: Room) -> None:
    room.acts = [room.ends(JobState.SUCCEEDED, saves=(40,), says="step 40 ü\n")]
    room.train()
    assert Path(room.store.run_logs("tlaaa"), "tlaaa-a1.log").read_text() == "step 40 ü\n"
