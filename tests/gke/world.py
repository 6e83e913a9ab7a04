"""One run on the fakes of Google and a real API server: its tasks as functions, in the order of the graph, in virtual time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httplib2
import urllib3.connectionpool

from tests.fakes.clock import FakeClock
from tests.fakes.google import GoogleFakes
from tests.gke.double import Double
from tests.gke_specs import spec_of
from tests.unit.tasks.artifacts import FakeArtifact
from tuneline.config.spec import RunSpec
from tuneline.gcp.documents import Bucket
from tuneline.lineage.digests import FileDigest, content_digest
from tuneline.lineage.metadata import lineage_metadata
from tuneline.lineage.statement import build_statement
from tuneline.resources.inventory import Inventory, Names
from tuneline.tasks import (
    cleanup,
    launch_raycluster,
    preflight,
    provision_cluster,
    provision_filesystem,
    provision_network,
    provision_storage,
    release_gpus,
)
from tuneline.tasks.context import run_id_of
from tuneline.tasks.gke import Site

BUCKET = "demo-tuneline"
IMAGE = "docker.io/acme/steps-local:1@sha256:" + "7f" * 32
RESERVED = {"standard": "a3-ultragpu-8g", "lustre": "a4-highgpu-8g", "a4x": "a4x-highgpu-4g", "autopilot": "a4-highgpu-8g"}
ACCOUNTS = {f"infra_account_{name}": f"{name}@demo.iam.gserviceaccount.com" for name in ("network", "cluster", "storage")}


class PlayedClock(FakeClock):
    """A virtual clock; whoever plays a part acts when time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.players: list[Callable[[], None]] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for player in self.players:
            player()


class Killed(BaseException):
    """The end of a task's process."""


@dataclass
class Wire:
    """Requests on their way to Google and to the cluster, as the process that runs the tasks sends them.

    Attributes:
        changes: Requests so far that change something.
        fatal: The process ends right after this one took effect; 0 for never.
    """

    double: Double
    changes: int = 0
    fatal: int = 0
    sent: list[str] = field(default_factory=list)

    def counted(self, send: Callable[..., Any], method: str, url: str, *args: Any, **options: Any) -> Any:
        answer = send(*args, **options)
        if not self.double.acting and method not in ("GET", "HEAD") and "generateAccessToken" not in url:
            self.changes += 1
            self.sent.append(f"{method} {url}")
            if self.changes == self.fatal:
                raise Killed
        return answer

    @contextlib.contextmanager
    def tapped(self) -> Iterator[None]:
        """Count, and kill, within this block."""
        http, pool = httplib2.Http.request, urllib3.connectionpool.HTTPConnectionPool.urlopen

        def request(own: Any, uri: str, method: str = "GET", *args: Any, **options: Any) -> Any:
            return self.counted(http, method, uri, own, uri, method, *args, **options)

        def urlopen(own: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
            return self.counted(pool, method, url, own, method, url, *args, **options)

        httplib2.Http.request = request  # type: ignore[method-assign]
        urllib3.connectionpool.HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign]
        try:
            yield
        finally:
            httplib2.Http.request = http  # type: ignore[method-assign]
            urllib3.connectionpool.HTTPConnectionPool.urlopen = pool  # type: ignore[method-assign]


_JOBS = itertools.count(1)


class Run:
    """One run of one system.

    Args:
        changes: Parameters other than the system's own.
    """

    def __init__(self, fakes: GoogleFakes, double: Double, system: str, **changes: Any) -> None:
        self.fakes, self.double, self.wire = fakes, double, Wire(double)
        machine = RESERVED[system]
        if f"projects/demo/zones/us-central1-b/reservations/{system}" not in fakes.world.resources:
            fakes.capacity.reserve("demo", system, "us-central1-b", machine, 8)
        base = {
            "infra_project": "demo",
            "gpu_machine": machine,
            "gpu_reservation": system,
            "gpu_image": IMAGE,
            "gpu_ready_minutes": 60.0,
            "output_root": f"gs://{BUCKET}/grpo",
            "ops_cleanup_policy": "all",
            **ACCOUNTS,
        }
        self.spec: RunSpec = spec_of(system, **{**base, **changes})
        self.job = f"tuneline-grpo-{system}-{next(_JOBS)}"
        self.run_id = run_id_of("gke", "demo", "us-central1", self.job)

    @property
    def clock(self) -> FakeClock:
        return self.fakes.clock

    @property
    def names(self) -> Names:
        return Names.of(self.spec, self.run_id)

    @property
    def site(self) -> Site:
        return Site(self.spec, self.run_id, self.clock)

    @property
    def inventory(self) -> Inventory:
        return self.site.inventory

    def document(self, path: str) -> Any:
        """A document of the store, below its root."""
        return self.site.documents.read(f"{self.spec.output_root}/{path}")

    def preflight(self) -> None:
        preflight.run({**self.spec.model_dump(), "job_name": self.job}, clock=self.clock)

    def storage(self) -> None:
        provision_storage.run(self.spec.to_json(), self.job, clock=self.clock)

    def network(self) -> None:
        provision_network.run(self.spec.to_json(), self.job, clock=self.clock)

    def filesystem(self) -> None:
        provision_filesystem.run(self.spec.to_json(), self.job, clock=self.clock)

    def cluster(self) -> None:
        provision_cluster.run(self.spec.to_json(), self.job, clock=self.clock)

    def launch(self) -> str:
        staged = {name: self._staged(name) for name in ("model", "dataset")}
        code = FakeArtifact(metadata={"lineage_kind": "none"})
        return launch_raycluster.run(self.spec.to_json(), self.job, staged["model"], staged["dataset"], code, clock=self.clock)

    def release(self) -> str:
        return release_gpus.run(self.spec.to_json(), self.job, clock=self.clock)

    def cleanup(self, state: str = "SUCCEEDED") -> str:
        account = self.spec.infra_account_storage
        return cleanup.run(self.job, "gke", "demo", "us-central1", account, self.spec.output_root, state, clock=self.clock)

    TASKS = ("preflight", "storage", "network", "cluster", "filesystem", "launch", "release", "cleanup")

    def until(self, last: str) -> None:
        """Every task up to and with `last`, once."""
        for task in self.TASKS[: self.TASKS.index(last) + 1]:
            getattr(self, task)()

    def changes_of(self, task: str) -> int:
        """Run a task; how many of its requests changed something."""
        before = self.wire.changes
        with self.wire.tapped():
            getattr(self, task)()
        return self.wire.changes - before

    def kill(self, task: str, after: int) -> None:
        """Run a task in a process that ends when its `after`-th change has taken effect."""
        self.wire.fatal = self.wire.changes + after
        try:
            with self.wire.tapped():
                getattr(self, task)()
        except Killed:
            return
        finally:
            self.wire.fatal = 0
        raise AssertionError(f"{task} ended before its change {after}: {self.wire.sent[-5:]}")

    def left(self) -> list[str]:
        """What is left in Google Cloud, but for the bucket."""
        return [path for path in self.fakes.leftovers() if path != f"b/{BUCKET}"]

    def _staged(self, name: str) -> FakeArtifact:
        """An input as its staging task leaves it in the bucket."""
        kind, uri = {"model": "base", "dataset": "dataset"}[name], f"{self.spec.output_root}/{name}s/sample"
        data = f"{name}\n"
        from hashlib import sha256

        files = [FileDigest("data.txt", sha256(data.encode()).hexdigest(), len(data))]
        statement = build_statement(
            kind=kind,
            uri=uri,
            files=files,
            quick=(),
            dependencies=(),
            parameters={},
            run_id=self.run_id,
            task=f"stage_{name}",
            attempt=1,
            started="2030-01-01T00:00:00Z",
            finished="2030-01-01T00:00:00Z",
            details={},
        )
        bucket = self.site.google.storage.bucket(BUCKET)
        prefix = uri.removeprefix(f"gs://{BUCKET}/")
        for path, content in (("data.txt", data.encode()), ("lineage.json", statement.to_json())):
            bucket.blob(f"{prefix}/{path}").upload_from_string(content)
        digest = content_digest(files)
        metadata = lineage_metadata(kind=kind, digest=digest, run_id=self.run_id, task=f"stage_{name}", attempt=1, parameters={})
        return FakeArtifact(uri=uri, metadata=dict(metadata))


__all__ = ["BUCKET", "Bucket", "Killed", "Path", "PlayedClock", "Run"]
