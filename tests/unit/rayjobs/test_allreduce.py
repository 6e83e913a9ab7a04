"""The measurement's arithmetic and its verdict; what it measures is in tests/local."""

from __future__ import annotations

import json

import pytest

from tuneline.rayjobs import allreduce


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert allreduce.bus_bandwidth(10**9, 0.005, 2) == 200
    assert allreduce.bus_bandwidth(10**9, 0.005, 16) == 375


@pytest.mark.parametrize(("floor", "code"), [("100", 0), ("100.1", 1)])
def test_below_the_floor_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], floor: str, code: int) -> None:
    monkeypatch.setattr(allreduce, "measure", lambda *_: 100.04)
    assert allreduce.main(["2", "8", floor, "1024", "nccl"]) == code
    assert json.loads(capsys.readouterr().out) == {"all_reduce_gb_s": 100.0, "floor_gb_s": float(floor), "gpus": 16, "bytes": 1024}
