"""verl's checkpoints: what makes one complete, and what is wrong with one that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneline.engines.verl import VerlEngine
from tuneline.engines.verl_checkpoint import TRACKER

ENGINE = VerlEngine()


def write(attempt: Path, step: int, *, ranks: int = 4, finished: bool = True) -> Path:
    folder = attempt / f"global_step_{step}"
    (folder / "actor" / "huggingface").mkdir(parents=True)
    for part in ("model", "optim", "extra_state"):
        for rank in range(ranks):
            (folder / "actor" / f"{part}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"PK12")
    (folder / "actor" / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    (folder / "actor" / "huggingface" / "config.json").write_text("{}")
    (folder / "data.pt").write_bytes(b"PK")
    if finished:
        (attempt / TRACKER).write_text(str(step))
    return folder


def test_checkpoints_of_all_attempts_with_their_world_size(tmp_path: Path) -> None:
    write(tmp_path / "run-a1", 10)
    write(tmp_path / "run-a1", 20)
    write(tmp_path / "run-a1", 30, finished=False)
    write(tmp_path / "run-a2", 25, ranks=2)
    (tmp_path / "run-a1" / "tensorboard").mkdir()
    found = ENGINE.find_checkpoints(str(tmp_path))
    assert [(c.step, c.complete, c.world_size) for c in found] == [(10, True, 4), (20, True, 4), (25, True, 2), (30, False, 4)]
    assert found[0].path == str(tmp_path / "run-a1" / "global_step_10")
    assert found[-1].fault == f"{TRACKER} names step 20: this one was not finished"
    assert ENGINE.find_checkpoints(str(tmp_path / "nowhere")) == []


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "actor/model_world_size_4_rank_2.pt").unlink(), "1 of 4 model shards are missing: rank 2"),
    (lambda folder: (folder / "actor/optim_world_size_4_rank_0.pt").write_bytes(b""), "optim_world_size_4_rank_0.pt is empty"),
    (lambda folder: (folder / "data.pt").unlink(), "data.pt is missing"),
    (lambda folder: (folder / "actor/huggingface/config.json").unlink(), "huggingface/config.json is missing"),
    (lambda folder: (folder / "actor/fsdp_config.json").write_text('{"world_size": 8}'), "names 8 ranks, the shards 4"),
    (lambda folder: (folder / "actor/fsdp_config.json").write_text('{"wor'), "fsdp_config.json cannot be read"),
    (lambda folder: (folder / "actor/model_world_size_8_rank_0.pt").write_bytes(b"x"), "shards of 2 world sizes (4, 8)"),
    (lambda folder: (folder.parent / TRACKER).unlink(), f"no {TRACKER}"),
    (lambda folder: (folder.parent / TRACKER).write_text(""), f"{TRACKER} holds ''"),
    (lambda folder: [path.unlink() for path in (folder / "actor").glob("*.pt")], "no shard"),
]


@pytest.mark.parametrize(("damage", "fault"), DAMAGES)
def test_a_damaged_checkpoint_is_not_complete_and_says_why(tmp_path: Path, damage: Callable[[Path], object], fault: str) -> None:
    damage(write(tmp_path / "run-a1", 10))
    [found] = ENGINE.find_checkpoints(str(tmp_path))
    assert not found.complete
    assert fault in found.fault


def test_half_of_the_ranks_saved() -> None:
    """verl#4024: nodes that do not share the folder save their own ranks only."""
    files = {f"run-a1/global_step_5/actor/{part}_world_size_16_rank_{rank}.pt": 9 for part in ("model", "optim") for rank in range(8)}
    [found] = ENGINE.inspect_checkpoints("gs://b/checkpoints/k", files, lambda path: "")
    assert found.fault == "8 of 16 model shards are missing: rank 8, 9, 10, 11, 12, …"
    assert found.path == "gs://b/checkpoints/k/run-a1/global_step_5"
    assert found.world_size == 16
