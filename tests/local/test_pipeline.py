"""The committed pipeline itself, run whole: results, reuse, lineage, failure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.local.runs import ROOT, path_in, start
from tuneline.lineage.model import State
from tuneline.lineage.sqlite import SqliteStore


def audit(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "tuneline.cli.main", "audit", *arguments], cwd=ROOT, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def steps_written(store: Path) -> list[str]:
    return [line for path in sorted(store.glob("checkpoints/*/*/metrics.jsonl")) for line in path.read_text().splitlines()]


def states(store: Path, run_id: str) -> dict[str, State]:
    lineage = SqliteStore(store / "lineage" / "lineage.sqlite")
    tasks = ("stage_model", "stage_dataset", "stage_code", "launch_raycluster", "train", "convert", "evaluate", "register", "cleanup")
    found = {task: lineage.execution(f"{run_id}/{task}/1") for task in tasks}
    return {task: execution.state for task, execution in found.items() if execution}


def test_a_run_says_where_everything_lies(first: str) -> None:
    for label, suffix in (("model", ""), ("reward curve", ".html"), ("lineage report", ".html"), ("log", ".log")):
        path = path_in(first, label)
        assert path.exists(), label
        assert path.suffix == suffix
    assert path_in(first, "reward curve").with_suffix(".png").stat().st_size > 5000
    assert "local-tiny@1" in first


def test_what_ran_is_the_committed_yaml(first: str, store: Path) -> None:
    document = yaml.safe_load((ROOT / "compiled" / "local-tiny.yaml").read_text())
    session = path_in(first, "log").parent
    (run,) = [path for path in (session / "kfp").iterdir() if path.is_dir() and not path.name.startswith(".")]
    assert run.name.startswith(document["pipelineInfo"]["name"])
    ran = {path.parent.name for path in run.glob("*/executor_output.json")}
    assert ran == {name.removeprefix("exec-") for name in document["deploymentSpec"]["executors"]}


def test_the_model_is_the_trainers_last_weights_bit_for_bit_and_generates(first: str, store: Path) -> None:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = path_in(first, "model")
    statement = json.loads((folder / "lineage.json").read_text())
    source = next(
        Path(item["uri"]) for item in statement["predicate"]["buildDefinition"]["resolvedDependencies"] if item["name"] == "checkpoint"
    )
    whole = store.parent / "whole.pt"
    dcp_to_torch_save(source / "weights", whole)
    trained: dict[str, Any] = torch.load(whole, weights_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    loaded = model.state_dict()
    trained = {
        name.removeprefix(
            "model.",
        )
        if name not in loaded
        else name: value
        for name, value in trained.items()
    }
    assert set(trained) >= set(loaded) - {"lm_head.weight"}
    for name, value in loaded.items():
        if name in trained:
            assert torch.equal(value, trained[name]), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3 + 4 ="}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert output.shape[1] > prompt["input_ids"].shape[1]


def test_the_same_run_again_trains_nothing_and_starts_no_cluster(first: str, store: Path) -> None:
    before = steps_written(store)
    run = start(store)
    code, output = run.finish()
    assert code == 0, output
    assert steps_written(store) == before
    assert not (store / "runs" / (run.session() / "run_id").read_text() / "raycluster.json").exists()
    assert path_in(output, "model") == path_in(first, "model")
    assert "local-tiny@1" in output
    found = states(store, (run.session() / "run_id").read_text())
    assert [task for task, state in found.items() if state is State.CACHED] == ["stage_model", "stage_dataset", "convert"]


def test_another_learning_rate_stages_from_the_cache_and_trains(first: str, store: Path) -> None:
    before = Counter(steps_written(store))
    run = start(store, "train_learning_rate=1e-3")
    code, output = run.finish()
    assert code == 0, output
    new = Counter(steps_written(store)) - before
    assert sorted(json.loads(line)["step"] for line in new) == [0, 1, 2, 3, 4]
    found = states(store, (run.session() / "run_id").read_text())
    assert (found["stage_model"], found["stage_dataset"], found["train"]) == (State.CACHED, State.CACHED, State.COMPLETE)
    assert path_in(output, "model") != path_in(first, "model")


def test_a_failed_convert_costs_no_training_step(first: str, store: Path) -> None:
    models = store / "hf"
    run = start(store, "train_seed=5")
    run.wait_for(lambda event: event["kind"] == "task" and event["task"] == "train")
    models.rename(store / "hf-away")
    models.write_text("in the way")
    try:
        code, output = run.finish()
        assert code == 1
        assert "FAILED          convert: [TL200] a folder cannot be made" in output
        assert "FAILED" not in output.split("FAILED          convert")[1]
        before = steps_written(store)
    finally:
        models.unlink()
        (store / "hf-away").rename(models)
    run = start(store, "train_seed=5")
    code, output = run.finish()
    assert code == 0, output
    assert steps_written(store) == before
    assert path_in(output, "model").is_dir()


def test_a_failing_task_ends_the_run_with_its_reason_and_the_cleanup_has_run(first: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"question": "x"}\n')
    (tmp_path / "data" / "test.jsonl").write_text('{"question": "y"}\n')
    run = start(store, f"data_id={tmp_path / 'data'}", "data_adapter=gsm8k")
    code, output = run.finish()
    assert code == 1
    assert "FAILED          stage_dataset: [TL210] train row 0 does not fit the adapter gsm8k" in output
    assert "next: choose the adapter that fits" in output.splitlines()[-1]
    assert states(store, (run.session() / "run_id").read_text())["cleanup"] is State.COMPLETE
    assert run.processes() == []


def test_audit_verifies_names_a_flipped_byte_and_misses_a_lost_sidecar(first: str, store: Path, tmp_path: Path) -> None:
    model = path_in(first, "model")
    database = ("--store", str(store))
    code, output = audit(str(model), *database)
    assert code == 0, output
    shard = max(model.glob("*.safetensors"))
    held = shard.read_bytes()
    try:
        shard.write_bytes(held[:-100] + bytes([held[-100] ^ 1]) + held[-99:])
        code, output = audit(str(model), *database)
        assert code == 1
        assert shard.name in output
    finally:
        shard.write_bytes(held)
    sidecar = model / "lineage.json"
    shutil.move(sidecar, tmp_path / "lineage.json")
    try:
        assert audit(str(model), *database)[0] == 2
    finally:
        shutil.move(tmp_path / "lineage.json", sidecar)
    assert audit(str(model), *database)[0] == 0


def test_two_runs_beside_each_other(first: str, store: Path) -> None:
    runs = [start(store, "train_seed=7"), start(store, "train_seed=7")]
    results = [run.finish() for run in runs]
    assert [code for code, _ in results] == [0, 0], results
    one, two = (path_in(output, "model") for _, output in results)
    assert one == two
