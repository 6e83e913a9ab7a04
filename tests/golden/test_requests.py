"""The whole set of requests of every system and provisioning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.gke_specs import RUN_ID, VALID, spec_of
from tests.golden.conftest import Check
from tuneline.resources.requests import as_rows, build_requests

FOLDER = Path(__file__).parent / "requests"
NOW = 1_800_000_000.0


@pytest.mark.parametrize(("system", "how"), VALID)
def test_requests(system: str, how: str, check_golden: Check) -> None:
    requests = build_requests(spec_of(system, how), RUN_ID, "123456789012", now=NOW)
    text = yaml.safe_dump_all(as_rows(requests), sort_keys=False, width=140, explicit_start=True)
    check_golden(FOLDER / f"{system}-{how}.yaml", text)


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {f"{system}-{how}" for system, how in VALID}
