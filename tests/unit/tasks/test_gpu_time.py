"""GPU-minutes: held, used, idle."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.clock import START, FakeClock
from tests.gke_specs import spec_of
from tuneline.config.store import Store
from tuneline.core.clock import utc
from tuneline.gcp.documents import Folder
from tuneline.tasks import gpu_time


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """The part of a Site that counts time, with a folder as its store."""
    spec = spec_of("standard")
    return SimpleNamespace(spec=spec, run_id="tl1", clock=FakeClock(), store=Store(str(tmp_path)), documents=Folder())


def job(start: float, end: float | None) -> dict[str, Any]:
    status = {"startTime": utc(START + start), **({"endTime": utc(START + end)} if end else {})}
    return {"metadata": {"name": f"tl1-a{start:.0f}"}, "status": status}


def test_two_nodes_of_eight_gpus(site: Any) -> None:
    gpu_time.note_nodes(site, ["n1"])
    site.clock.advance(600)
    gpu_time.note_nodes(site, ["n1", "n2"])
    site.clock.advance(3000)
    gpu_time.note_jobs(site, [job(600, 2400), {"metadata": {"name": "never-ran"}}])
    first = gpu_time.close(site)
    assert (first.held, first.used, first.idle) == ((60 + 50) * 8, 30 * 2 * 8, 110 * 8 - 480)
    site.clock.advance(9999)
    assert gpu_time.close(site) == first, "what has ended grows no more"
    assert str(first) == "880 GPU-minutes held, 480 used, 400 idle"


def test_a_job_that_still_runs_ends_now_and_never_uses_more_than_was_held(site: Any) -> None:
    gpu_time.note_nodes(site, ["n1"])
    site.clock.advance(1200)
    gpu_time.note_jobs(site, [job(0, None)])
    time = gpu_time.close(site)
    assert (time.held, time.used, time.idle) == (160, 160, 0)


def test_nothing_held_is_nothing(site: Any) -> None:
    assert gpu_time.close(site) == gpu_time.GpuTime(0, 0)
