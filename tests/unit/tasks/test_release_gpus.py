from __future__ import annotations

from pathlib import Path

from tests.fakes.rayjobs import FakeClock, FakeCluster, FakeEngine
from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.rayjobs.attempts import Attempts
from tuneline.tasks.release_gpus import release


def test_the_cluster_goes_and_the_budget_ends_however_often(tmp_path: Path) -> None:
    spec, store, clock, cluster = RunSpec.build({}), Store(str(tmp_path)), FakeClock(), FakeCluster()
    Attempts(spec, store, "tlaaa", "k", FakeEngine(), clock=clock)
    budget = Path(store.training_budget("tlaaa"))
    assert budget.exists()
    release(store, "tlaaa", clock=clock, cluster=cluster)
    release(store, "tlaaa", clock=clock, cluster=cluster)
    assert cluster.calls == ["remove", "remove"]
    assert not budget.exists()
