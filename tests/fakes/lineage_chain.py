"""A store with one whole run in it: stage, train, convert, register, as the pipeline's tasks record it, over a few small files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuneline.config.store import Store
from tuneline.lineage import sidecar
from tuneline.lineage.digests import content_digest, digest_folder
from tuneline.lineage.model import Artifact
from tuneline.lineage.record import TaskRecord, start_task
from tuneline.lineage.sidecar import Dependency
from tuneline.lineage.sqlite import SqliteStore

SHARD = "model-00001-of-00002.safetensors"
PARAMETERS = {"train_learning_rate": 1e-06, "train_steps": 4, "train_reward": "gsm8k", "train_force": False}


@dataclass
class TickingClock:
    """Each reading is a second later than the one before."""

    time: float = 1_800_000_000.0

    def now(self) -> float:
        self.time += 1
        return self.time

    def monotonic(self) -> float:
        return self.now()

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def fill(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


@dataclass
class Chain:
    """The run's folders and artifacts; `make` records it all."""

    root: Path
    run_id: str = "tlaaaaaaaaaa"
    name: str = "local-tiny"
    clock: TickingClock = field(default_factory=TickingClock)
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @classmethod
    def make(cls, root: Path, **values: str) -> Chain:
        chain = cls(root, **values)  # type: ignore[arg-type]
        chain.stage("base", {"config.json": b"{}", "model.safetensors": b"base weights"})
        chain.stage("dataset", {"train.parquet": b"PAR1 train PAR1", "test.parquet": b"PAR1 test PAR1"})
        chain.stage_code()
        chain.train()
        chain.convert()
        chain.register()
        return chain

    @property
    def store(self) -> SqliteStore:
        return SqliteStore(Path(Store(str(self.root)).lineage_db()))

    def path(self, kind: str) -> Path:
        """The folder of an artifact."""
        return Path(self.artifacts[kind].uri)

    def task(self, name: str, attempt: int = 1) -> TaskRecord:
        return start_task(self.store, run_id=self.run_id, task=name, attempt=attempt, parameters=PARAMETERS, clock=self.clock)

    def seal(self, record: TaskRecord, kind: str, folder: Path, made_from: tuple[str, ...], details: Mapping[str, str]) -> Artifact:
        """Digest a folder, write its sidecar, record it as an output."""
        dependencies = [Dependency(name, name, self.artifacts[name].uri, self.artifacts[name].digest) for name in made_from]
        statement = record.statement(kind=kind, uri=str(folder), files=digest_folder(folder), dependencies=dependencies, details=details)
        standing = sidecar.write(folder, statement)
        artifact = record.output(kind, str(folder), kind=kind, digest=standing.digest, metadata=standing.metadata())
        self.artifacts[kind] = artifact
        return artifact

    def take(self, record: TaskRecord, *kinds: str) -> None:
        for kind in kinds:
            artifact = self.artifacts[kind]
            record.input(kind, artifact.uri, kind=kind, digest=artifact.digest, metadata=artifact.metadata)

    def stage(self, kind: str, files: Mapping[str, bytes]) -> Artifact:
        with self.task(f"stage_{'model' if kind == 'base' else kind}") as record:
            scratch = self.root / "scratch"
            fill(scratch, files)
            digest = content_digest(digest_folder(scratch))
            layout = Store(str(self.root))
            folder = Path(layout.model("tiny", digest[:12]) if kind == "base" else layout.dataset(digest))
            if folder.exists():
                shutil.rmtree(scratch)
            else:
                folder.parent.mkdir(parents=True, exist_ok=True)
                scratch.rename(folder)
            return self.seal(record, kind, folder, (), {"id": kind, "licence": "apache-2.0"})

    def stage_code(self) -> Artifact:
        """A run without user code."""
        with self.task("stage_code") as record:
            self.artifacts["code"] = record.output("code", "none", kind="code")
            return self.artifacts["code"]

    def train(self) -> Artifact:
        """As the pipeline does: the checkpoint is recorded before it is digested."""
        with self.task("train") as record:
            self.take(record, "base", "dataset", "code")
            folder = self.root / "checkpoints" / "key" / f"{self.run_id}-a1" / "step_4"
            fill(folder, {"weights/.metadata": b"meta", "weights/__0_0.distcp": b"trained weights", "COMPLETE": b"4"})
            self.artifacts["checkpoint"] = record.output("checkpoint", str(folder), kind="checkpoint")
            return self.artifacts["checkpoint"]

    def convert(self) -> Artifact:
        with self.task("convert") as record:
            self.take(record, "base", "checkpoint")
            source = self.path("checkpoint")
            files = digest_folder(source)
            dependencies = [Dependency(name, name, self.artifacts[name].uri, self.artifacts[name].digest) for name in ("base", "dataset")]
            statement = sidecar.build_statement(
                kind="checkpoint", uri=str(source), files=files, dependencies=dependencies, parameters=PARAMETERS,
                run_id=self.run_id, task="train", attempt=1,
                started="2027-01-15T08:00:01Z", finished="2027-01-15T08:00:05Z", details={"step": "4", "seed": "0"},
            )  # fmt: skip
            standing = sidecar.write(source, statement)
            self.artifacts["checkpoint"] = Artifact("checkpoint", str(source), standing.digest, standing.metadata())
            self.take(record, "checkpoint")
            model = self.root / "hf" / "model"
            fill(model, {"config.json": b"{}", SHARD: b"\0" * 64 + b"one", "model-00002-of-00002.safetensors": b"two"})
            return self.seal(record, "hf", model, ("base", "dataset", "checkpoint"), {"step": "4"})

    def register(self) -> Artifact:
        with self.task("register") as record:
            self.take(record, "hf")
            version = self.store.register(self.name, self.artifacts["hf"], {}, at=self.clock.now())
            self.artifacts["registered"] = record.output("registered", version.uri, kind="registered", digest=self.artifacts["hf"].digest)
            return self.artifacts["registered"]
