"""The attempts of a training: their numbers, folders, saved logs, and the checkpoint that the next one starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM, Clock, Deadline
from tuneline.core.files import read_json, write_json
from tuneline.core.names import attempt_name
from tuneline.engines.base import Checkpoint, Engine

_TAIL_BYTES = 64 * 1024
_TAIL_CHARACTERS = 500


def final_checkpoint(store: Store, training_key: str, engine: Engine, spec: RunSpec) -> Checkpoint | None:
    """The complete checkpoint with which a whole training of this key ended, whichever run wrote it."""
    return _final(engine.find_checkpoints(store.checkpoints(training_key)), engine.expected_final_step(spec))


def _final(checkpoints: list[Checkpoint], step: int) -> Checkpoint | None:
    return next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.complete and checkpoint.step == step), None)


class Attempts:
    """The attempts of one run at one training key.

    Their numbers go up over all keys of a run, because Ray never takes a job name twice. The budget (deadline, number of
    attempts) spans every retry of the train task and ends with `close`, so that the same run started again has a whole one.
    """

    def __init__(self, spec: RunSpec, store: Store, run_id: str, training_key: str, engine: Engine, *, clock: Clock = SYSTEM) -> None:
        self._spec, self._store, self._run_id, self._key, self._engine, self._clock = spec, store, run_id, training_key, engine, clock
        self._budget = path = Path(store.training_budget(run_id))
        budget = read_json(path) if path.exists() else {}
        if budget.get("training_key") != training_key:
            budget = {"training_key": training_key, "first_attempt": self._highest("*") + 1, "started": clock.now()}
            write_json(path, budget)
        self.first = int(budget["first_attempt"])
        self.deadline = Deadline.after(clock, budget["started"] + spec.train_deadline_hours * 3600 - clock.now())

    @staticmethod
    def close(store: Store, run_id: str) -> None:
        """End the budget: training of this run is over."""
        Path(store.training_budget(run_id)).unlink(missing_ok=True)

    def latest(self) -> int:
        """The newest attempt of this budget, 0 where there is none."""
        number = self._highest(self._key)
        return number if number >= self.first else 0

    def next(self) -> int:
        """A number that no attempt of this run had."""
        return self._highest("*") + 1

    def used(self) -> int:
        """How many attempts of the budget are used."""
        return max(0, self.latest() - self.first + 1)

    def name(self, number: int) -> str:
        """The attempt's job name."""
        return attempt_name(self._run_id, number)

    def directory(self, number: int) -> Path:
        """Where the attempt writes; made here, so that the number counts as used before its job is submitted."""
        path = Path(self._store.attempt(self._key, self.name(number)))
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, number: int) -> SavedLog:
        """The attempt's saved log."""
        return SavedLog(Path(self._store.run_logs(self._run_id), f"{self.name(number)}.log"))

    def untouched(self, number: int) -> bool:
        """Whether the attempt wrote nothing at all: its job was never started."""
        return not any(self.directory(number).iterdir()) and self.log(number).offset == 0

    def note_stall(self, number: int, reason: str) -> None:
        """Write down why the attempt was stopped, for a retry of the task: Ray will only say that it was."""
        budget = read_json(self._budget)
        write_json(self._budget, {**budget, "stalls": {**budget.get("stalls", {}), str(number): reason}})

    def stall(self, number: int) -> str:
        """Why the attempt was stopped, '' where it was not for a stall."""
        return str(read_json(self._budget).get("stalls", {}).get(str(number), ""))

    def final(self) -> Checkpoint | None:
        """The checkpoint that makes further training needless: of any run, with train_force of this budget only."""
        return _final(self._checkpoints(), self._engine.expected_final_step(self._spec))

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint that this spec can resume from, over all attempts that may be used."""
        return next(
            (
                checkpoint
                for checkpoint in reversed(self._checkpoints())
                if checkpoint.complete and not self._engine.why_not_resume(self._spec, checkpoint)
            ),
            None,
        )

    def _checkpoints(self) -> list[Checkpoint]:
        root = Path(self._store.checkpoints(self._key))
        found = self._engine.find_checkpoints(str(root))
        if not self._spec.train_force:
            return found
        own = {self.name(number) for number in range(self.first, self.latest() + 1)}
        return [checkpoint for checkpoint in found if Path(checkpoint.path).relative_to(root).parts[0] in own]

    def _highest(self, key: str) -> int:
        prefix = f"{self._run_id}-a"
        numbers = [path.name.removeprefix(prefix) for path in Path(self._store.checkpoints("")).glob(f"{key}/{prefix}*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)


@dataclass
class SavedLog:
    """A job's log as saved so far: UTF-8, without gap or duplicate over re-attachment.

    Attributes:
        offset: Characters saved, which is where the runner's log goes on.
    """

    path: Path
    offset: int = 0

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = self.path.read_bytes() if self.path.exists() else b""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            # A task killed within a write leaves a part of a character.
            text = data[: error.start].decode()
            with open(self.path, "r+b") as handle:
                handle.truncate(error.start)
        self.offset = len(text)

    def append(self, text: str) -> None:
        """Save more text."""
        with open(self.path, "ab") as handle:
            handle.write(text.encode())
        self.offset += len(text)

    def tail(self, lines: int) -> list[str]:
        """The last lines; of a long one only its end. The log of a job that prints without end is never read whole."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as handle:
            handle.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
            text = handle.read().decode(errors="replace")
        return [line[-_TAIL_CHARACTERS:] for line in text.splitlines()[-lines:]]
