"""`tuneline run` watches a child; here the child is a stand-in that tells a few events and then waits or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.fakes.lineage_chain import Chain
from tuneline.cli import run
from tuneline.cli.progress import View
from tuneline.cli.session import SESSION_VARIABLE, Session
from tuneline.config.spec import RunSpec
from tuneline.core.errors import LineageError
from tuneline.lineage.record import start_task
from tuneline.lineage.sqlite import SqliteStore

#: Takes the place of tuneline.cli.local_pipeline: tells a task for ever, or ends at once where told how.
CHILD = """
    import json, os, sys, time
    event = {"kind": "task", "task": "train", "state": "finished", "at": 1.0}
    while True:
        with open(os.environ["TUNELINE_EVENTS"], "a") as events:
            events.write(json.dumps(event) + "\\n")
        if os.environ.get("END") == "killed":
            open(os.path.join(os.path.dirname(os.environ["TUNELINE_EVENTS"]), "run_id"), "w").write("tltest")
            os.kill(os.getpid(), 9)
        if os.environ.get("END"):
            sys.exit(3)
        time.sleep(0.02)
"""
RUN = """
    import sys
    from tuneline.cli import run
    from tuneline.cli.main import main
    popen = run.subprocess.Popen
    run.subprocess.Popen = lambda argv, **options: popen([sys.executable, "-c", CHILD], **options)
    sys.argv = ["tuneline", "run", "--store", sys.argv[1]]
    main()
"""


def start(store: Path, **variables: str) -> subprocess.Popen[str]:
    program = f"CHILD = {textwrap.dedent(CHILD)!r}\n{textwrap.dedent(RUN)}"
    return subprocess.Popen(
        [sys.executable, "-c", program, str(store)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if variables.get("NOHUP") else None,
    )


def left(store: Path) -> list[psutil.Process]:
    """Living processes of the store's sessions."""
    sessions = {path.name for path in (store / "sessions").iterdir()}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(SESSION_VARIABLE) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_reader_that_goes_ends_the_run(tmp_path: Path) -> None:
    process = start(tmp_path / "store")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("run of local-tiny")
    process.stdout.close()
    assert process.wait(60) != 0
    assert left(tmp_path / "store") == []


def test_nohup_keeps_the_run(tmp_path: Path) -> None:
    process = start(tmp_path / "store", NOHUP="1")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("run of local-tiny")
    process.send_signal(signal.SIGHUP)
    assert "train" in process.stdout.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "no process of the run is left" in output
    assert left(tmp_path / "store") == []


def test_a_killed_pipeline_is_cleaned_up_after_and_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    record = store / "runs" / "tltest" / "raycluster.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    output, _ = start(store, END="killed").communicate(timeout=60)
    assert output.splitlines()[-1].split(maxsplit=1) == ["FAILED", "the process that ran the pipeline was ended by SIGKILL"]
    assert not record.exists()
    assert left(store) == []


@pytest.mark.parametrize("name", ["[red]s[/blue]", "store"])
def test_any_path_and_any_encoding_is_printed(name: str, tmp_path: Path) -> None:
    store = tmp_path / name
    output, errors = start(store, END="1", PYTHONIOENCODING="ascii").communicate(timeout=60)
    assert f"run of local-tiny in {store}" in output, errors
    assert "\\u2713 train" in output
    assert "FAILED" in output


def test_the_model_of_a_cached_conversion_is_the_one_of_its_shard_size(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lineage" / "lineage.sqlite")
    notes = {"train": {"checkpoint": str(tmp_path / "step_2")}}
    for shard_mb in (1, 2, 3):
        with start_task(store, run_id=f"tl{shard_mb}", task="convert", parameters={"output_shard_mb": shard_mb}) as record:
            record.input("checkpoint", str(tmp_path / "step_2"), kind="checkpoint", digest="c" * 64)
            record.output("hf_model", str(tmp_path / f"hf{shard_mb}"), kind="hf", digest=f"{shard_mb}" * 64)
    for shard_mb in (1, 2, 3):
        assert run._model(store, notes, shard_mb) == str(tmp_path / f"hf{shard_mb}")
    with pytest.raises(LineageError, match="does not hold the conversion"):
        run._model(store, notes, 4)
    assert run._model(store, {**notes, "convert": {"uri": "told"}}, 4) == "told"


@pytest.mark.parametrize(
    ("damage", "code", "last"),
    [("", 0, "lineage report"), ("model.safetensors", 1, "FAILED"), ("lineage.json", 0, "not verified")],
)
def test_a_run_ends_with_what_its_audit_says(
    damage: str, code: int, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    chain = Chain.make(store)
    if damage == "lineage.json":
        (chain.path("base") / damage).unlink()
    elif damage:
        (chain.path("base") / damage).write_bytes(b"flipped")
    session = Session.create(store)
    monkeypatch.setattr(Session, "run_id", chain.run_id)
    console = Console(highlight=False, markup=False, width=80)
    view = View(console)
    notes = {"evaluate": {"base_score": "0", "trained_score": "1", "curve": "c"}, "train": {}, "convert": {"uri": str(chain.path("hf"))}}
    view.tasks.update({name: {"notes": note} for name, note in notes.items()})
    assert run._report(console, session, view, RunSpec.build({"output_root": str(store)}), 0) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(last)
    if damage:
        verdict = "MISMATCH" if code else "INCOMPLETE"
        assert lines[-2].startswith(verdict)
        assert str(chain.path("base")) in lines[-2]
        assert f"({verdict})" in next(line for line in lines if line.startswith("lineage report"))
