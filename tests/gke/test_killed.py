"""Each task killed once in the middle, right after a change took effect, and retried: no duplicate, no leak."""

from __future__ import annotations

import re

import pytest

from tests.fakes.google import GoogleFakes
from tests.gke.double import Double
from tests.gke.test_whole_runs import SYSTEMS, of_run
from tests.gke.world import Run
from tuneline.kube.api import Api


def kinds(paths: list[str]) -> list[str]:
    """What there is of which kind, without what differs from run to run: ids of runs, clusters and groups."""
    plain = (re.sub(r"\b(tl[a-z2-7]{10}|[0-9a-f]{4,16}|nap-[\w-]+)\b", "*", path) for path in paths)
    return sorted("/".join(path.split("/")[-2:]) for path in plain)


@pytest.mark.parametrize("system", SYSTEMS)
def test_killed_in_the_middle_and_retried(fakes: GoogleFakes, double: Double, admin: Api, system: str) -> None:
    undisturbed = Run(fakes, double, system)
    tasks = Run.TASKS[1:]  # preflight changes nothing but its record
    changes, there = {}, {}
    for task in tasks:
        changes[task] = undisturbed.changes_of(task)
        there[task] = kinds(undisturbed.left())
    assert undisturbed.left() == []

    run = Run(fakes, double, system)
    for task in tasks:
        run.kill(task, after=(changes[task] + 1) // 2)
        getattr(run, task)()
        assert kinds(run.left()) == there[task], f"after {task}"
        if task in ("release", "cleanup"):
            assert of_run(admin, run) == []
    assert [entry.kind for entry in run.inventory.entries] in (["bucket"], ["bucket", "network"])
