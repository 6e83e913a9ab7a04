"""From empty to ready to empty."""

from __future__ import annotations

import pytest

from tests.fakes.google import GoogleFakes
from tests.gke.double import Double
from tests.gke.world import Run


@pytest.mark.parametrize("system", ["standard", "autopilot", "a4x", "lustre"])
def test_from_empty_to_ready_to_empty(fakes: GoogleFakes, double: Double, system: str) -> None:
    run = Run(fakes, double, system)
    run.until("launch")
    assert run.document(f"runs/{run.run_id}/raycluster.json")["name"] == run.run_id
    run.release()
    run.cleanup()
    assert run.left() == []
