"""`tuneline run`: a compiled pipeline on this computer, watched, and ended without leaving a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tuneline.cli import compiled
from tuneline.cli.progress import Events, View
from tuneline.cli.session import Session, interrupt
from tuneline.config.spec import RunSpec, is_folder
from tuneline.config.store import Store
from tuneline.core.clock import SYSTEM
from tuneline.core.errors import LineageError, SpecError
from tuneline.core.files import write_atomic
from tuneline.core.names import sha256_text
from tuneline.lineage.audit import audit
from tuneline.lineage.report import render_html
from tuneline.lineage.sqlite import SqliteStore
from tuneline.tasks.cleanup import end_run, errors_of
from tuneline.tasks.staging import source_files

#: How many reasons of a failed audit are printed.
REASONS = 5


@click.command("run")
@click.option("--recipe", default="local-tiny", show_default=True, help="A recipe's name, or a compiled YAML file.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Change a parameter; may be given many times.")
@click.option("--store", default="tuneline-store", show_default=True, type=click.Path(path_type=Path), help="Folder for all results.")
def command(recipe: str, sets: tuple[str, ...], store: Path) -> None:
    """Run a compiled pipeline on this computer, from preflight to registered model.

    Exit codes: 0 done, 1 a task failed or what was made contradicts its record, 2 refused before anything started, 130 interrupted.
    """
    path = compiled.find(recipe)
    changes: dict[str, Any] = {"output_root": str(store.resolve()), **compiled.assignments(sets)}
    spec = RunSpec.build({**compiled.defaults(path), **changes})
    if spec.infra_platform != "local":
        raise SpecError([f"infra_platform={spec.infra_platform!r}: `tuneline run` runs on this computer; choose local"])
    if not spec.output_root:
        raise SpecError(["output_root='': must be an absolute folder; leave it out and give --store"])
    if not spec.ops_rerun_token and (token := _fingerprint(spec)):
        changes["ops_rerun_token"] = token
        spec = RunSpec.build({**compiled.defaults(path), **changes})
    sys.exit(supervise(path, {name: getattr(spec, name) for name in changes}, spec))


def _fingerprint(spec: RunSpec) -> str:
    """Names, sizes and times of the folders that cached tasks read, so that a changed folder is staged again; '' without one."""
    folders = [Path(value) for value in (spec.model_id, spec.data_id) if is_folder(value)]
    files = [path for folder in folders for path in source_files(folder)]
    return sha256_text("\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files))[:16] if files else ""


def supervise(path: Path, arguments: dict[str, Any], spec: RunSpec) -> int:
    """Start the pipeline in a child of its own session, show it, and end everything with it. Returns the exit code."""
    root = str(arguments["output_root"])
    session = Session.create(Path(root))
    console = Console(highlight=False, markup=False)
    console.print(f"run of {path.stem} in {root}", soft_wrap=True)
    argv = [sys.executable, "-m", "tuneline.cli.local_pipeline", str(path), str(session.folder), str(session.temporary), root]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: it stays ignored
            signal.signal(number, _raise_interrupt)
    with open(session.log, "wb") as log:
        child = subprocess.Popen(
            [*argv, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=session.environment(),
            start_new_session=True,
        )
    view, events = View(console), Events(session.events)
    try:
        with view:
            while True:
                code = child.poll()
                for event in events.read():
                    view.show(event)
                view.refresh()
                if code is not None:
                    break
                SYSTEM.sleep(0.1)
        session.sweep()
        if code < 0 and session.run_id:  # killed, and the exit task with it
            end_run(session.run_id, root, "FAILED")
    except BaseException as error:  # also a closed stdout: the run never goes on unwatched
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        console.print("interrupted: ending the run and freeing what it holds")
        interrupt(session, root, child.pid)
        child.wait()
        console.print(f"interrupted; no process of the run is left. Log: {session.log}", soft_wrap=True)
        if not isinstance(error, KeyboardInterrupt):
            raise
        return 130
    return _report(console, session, view, spec, code)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _report(console: Console, session: Session, view: View, spec: RunSpec, code: int) -> int:
    """Where everything lies; on failure the reasons stand on the last lines."""

    def say(label: str, text: object, style: str = "") -> None:
        console.print(f"{label:<16}{text}", style=style, soft_wrap=True)

    console.print()
    say("log", session.log)
    if code:
        errors = errors_of(Store(spec.output_root).run_errors(session.run_id)) if session.run_id else []
        for error in errors:
            say("FAILED", f"{error['task']}: {error['error']}", "red")
        if code < 0:
            say("FAILED", f"the process that ran the pipeline was ended by {signal.Signals(-code).name}", "red")
        elif not errors:
            say("FAILED", "\n".join(["the last lines of the log:", *session.log.read_text(errors="replace").splitlines()[-15:]]), "red")
        return 1
    notes: dict[str, dict[str, str]] = {name: task.get("notes") or {} for name, task in view.tasks.items()}
    store = SqliteStore(Path(Store(spec.output_root).lineage_db()))
    evaluated, model = notes["evaluate"], _model(store, notes, spec.output_shard_mb)
    say("score", f"{evaluated['base_score']} -> {evaluated['trained_score']} (greedy accuracy on held-out prompts)")
    say("reward curve", f"{evaluated['curve']} (and curve.png)")
    say("model", model)
    if "register" in notes:
        say("registered", notes["register"]["name"])
    else:
        say("not registered", "its evaluation is below output_min_score or output_min_gain", "yellow")
    result = audit(model, store=store)
    report = Path(Store(spec.output_root).run(session.run_id)) / "lineage.html"
    write_atomic(report, render_html(result).encode())
    say("lineage report", f"{report} ({result.verdict})")
    if result.verdict == "VERIFIED":
        return 0
    mismatch = result.verdict == "MISMATCH"
    reasons = [finding for finding in result.findings if finding.severity == result.verdict]
    for finding in reasons[:REASONS]:
        say(result.verdict, f"{finding.subject}: {finding.what}", "red" if mismatch else "yellow")
    more = f" ({len(reasons) - REASONS} more reasons in the lineage report)" if len(reasons) > REASONS else ""
    if mismatch:
        say("FAILED", f"the model, or what it was made from, is not what was recorded: do not use it{more}", "red")
        return 1
    say("not verified", f"the run is done, but not everything that proves where its model comes from is there{more}", "yellow")
    return 0


def _model(store: SqliteStore, notes: dict[str, dict[str, str]], shard_mb: int) -> str:
    """Where the converted model lies, also where a cached conversion ran no code that could have told it.

    Raises:
        LineageError: If the lineage store has lost it.
    """
    told = notes.get("convert", {}).get("uri")
    if told:
        return told
    checkpoints = [artifact.id for artifact in store.find(uri=notes["train"]["checkpoint"], kind="checkpoint")]
    graph = store.downstream(checkpoints)
    for artifact in graph.of_kind("hf"):
        # One checkpoint has as many conversions as it was given shard sizes.
        if any(execution.parameters.get("output_shard_mb") == shard_mb for execution in graph.producers(artifact.id)):
            return artifact.uri
    raise LineageError(
        "the lineage store does not hold the conversion that the cache answered",
        asked=notes["train"]["checkpoint"],
        next_move="run again with a new ops_rerun_token",
    )
