from __future__ import annotations

import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.lineage_chain import PARAMETERS, SHARD, Chain, TickingClock, fill
from tuneline.lineage import sidecar
from tuneline.lineage.audit import audit
from tuneline.lineage.digests import content_digest, digest_file, digest_folder, quick_files
from tuneline.lineage.findings import AuditResult, FileState, NodeState, Severity
from tuneline.lineage.model import State
from tuneline.lineage.record import record_cached
from tuneline.lineage.sidecar import Dependency, Subject

fuzz = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ("base", "dataset", "checkpoint", "hf")


def look(chain: Chain, target: str = "", **values: Any) -> AuditResult:
    return audit(target or str(chain.path("hf")), store=values.pop("store", chain.store), clock=TickingClock(), **values)


def told(result: AuditResult, severity: Severity) -> str:
    return "\n".join(f"{item.subject}: {item.what}" for item in result.findings if item.severity is severity)


def sql(chain: Chain, statement: str, *values: object) -> None:
    connection = sqlite3.connect(chain.store.path)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def rewrite(folder: Path, **changes: Any) -> None:
    """A sidecar as a careful forger edits it: well-formed."""
    statement = replace(sidecar.read(folder), **changes)
    (folder / "lineage.json").write_bytes(statement.to_json())


def subjects(folder: Path) -> tuple[Subject, ...]:
    """The files of a folder as they are now."""
    return tuple(Subject(file.path, file.size, file.sha256) for file in digest_folder(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_verifies_without_a_finding(chain: Chain, kind: str) -> None:
    for target in (str(chain.path(kind)), f"{chain.path(kind)}/", f"file://{chain.path(kind)}", f"sha256:{chain.artifacts[kind].digest}"):
        result = look(chain, target)
        assert (result.verdict, result.exit_code, result.findings) == ("VERIFIED", 0, ())
        assert result.subject == chain.artifacts[kind].id
        assert {row.state for row in result.nodes[result.subject].files} == {FileState.SAME}


def test_the_chain_of_a_model_is_everything_that_made_it(chain: Chain) -> None:
    result = look(chain, "local-tiny@1")
    assert result.exit_code == 0
    assert {node.artifact.kind: node.state for node in result.nodes.values()} == {
        **dict.fromkeys([*KINDS, "registered"], NodeState.VERIFIED), "code": NodeState.NOTHING,
    }  # fmt: skip
    assert {item.task for item in result.graph.executions.values()} == {
        "stage_model", "stage_dataset", "stage_code", "train", "convert", "register",
    }  # fmt: skip
    assert result.at == 1_800_000_001.0
    assert result.nodes[result.subject].statement is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_anywhere_in_the_chain_is_a_mismatch_that_names_the_file(chain: Chain, kind: str) -> None:
    file = max(path for path in chain.path(kind).rglob("*") if path.is_file())
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    result = look(chain, "local-tiny@1")
    assert result.exit_code == 1
    assert f"{file}: CHANGED" in told(result, Severity.MISMATCH)
    assert len(result.findings) == 1


@fuzz
@given(st.data())
def test_no_single_byte_flip_is_missed(chain: Chain, data: st.DataObject) -> None:
    """In no file of the chain: weights, configs, data, markers, sidecars."""
    folder = chain.path(data.draw(st.sampled_from(KINDS)))
    file = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    held = file.read_bytes()
    index, mask = data.draw(st.integers(0, len(held) - 1)), data.draw(st.integers(1, 255))
    file.write_bytes(held[:index] + bytes([held[index] ^ mask]) + held[index + 1 :])
    try:
        result = look(chain)
    finally:
        file.write_bytes(held)
    assert result.exit_code == 1
    assert str(file if file.name != "lineage.json" else folder) in told(result, Severity.MISMATCH)
    assert look(chain).findings == ()


@fuzz
@given(st.data())
def test_no_file_added_removed_renamed_or_swapped_is_missed(chain: Chain, data: st.DataObject) -> None:
    folder = chain.path(data.draw(st.sampled_from(KINDS)))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lineage.json")
    file = data.draw(st.sampled_from(files))
    other = data.draw(st.sampled_from([path for path in files if path.read_bytes() != file.read_bytes()]))
    new = file.with_name(data.draw(st.text("abcxyz._-", min_size=1, max_size=12).filter(lambda name: name.strip("."))))
    if new.exists():
        return
    held = {path: path.read_bytes() for path in files}
    named = {
        "add": lambda: [new.write_bytes(data.draw(st.binary(max_size=20))), new][-1:],
        "remove": lambda: [file.unlink(), file][-1:],
        "rename": lambda: [file.rename(new), file, new][-2:],
        "swap": lambda: [file.write_bytes(held[other]), other.write_bytes(held[file]), file, other][-2:],
        "truncate": lambda: [file.write_bytes(held[file][:-1]), file][-1:],
    }[data.draw(st.sampled_from(["add", "remove", "rename", "swap", "truncate"]))]()
    try:
        result = look(chain)
    finally:
        new.unlink(missing_ok=True)
        for path, content in held.items():
            path.write_bytes(content)
    assert result.exit_code == 1
    assert all(str(path) in told(result, Severity.MISMATCH) for path in named)


@fuzz
@given(files=st.dictionaries(st.text("abc/._-", min_size=1, max_size=8), st.binary(max_size=64), min_size=1, max_size=6))
def test_a_clean_folder_never_alarms(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("clean")
    for path, content in files.items():
        if not path.strip("./") or any(part in ("", ".", "..") for part in path.split("/")):
            continue
        try:
            fill(folder, {path: content})
        except OSError:
            continue  # a name that is a folder already
    fill(folder, {"one": b""})
    chain = Chain(folder.parent / f"{folder.name}-store")
    with chain.task("stage_dataset") as record:
        chain.seal(record, "dataset", folder, (), {})
    for full in (True, False):
        result = audit(str(folder), store=chain.store, full=full)
        assert told(result, Severity.MISMATCH) == ""
    assert audit(str(folder), store=chain.store).findings == ()


def test_a_lost_sidecar_is_incomplete_and_a_mismatch_wins_over_it(chain: Chain) -> None:
    (chain.path("hf") / "lineage.json").unlink()
    result = look(chain)
    assert result.exit_code == 2
    assert "no lineage.json" in told(result, Severity.INCOMPLETE)
    assert {row.state for row in result.nodes[result.subject].files} == {FileState.SAME}
    (chain.path("hf") / SHARD).write_bytes(b"x")
    result = look(chain)
    assert result.exit_code == 1
    assert "cannot be named" in told(result, Severity.MISMATCH)


@pytest.mark.parametrize("kind", ["base", "dataset", "checkpoint"])
def test_a_lost_sidecar_or_folder_of_an_ancestor_is_incomplete(chain: Chain, kind: str) -> None:
    (chain.path(kind) / "lineage.json").unlink()
    assert look(chain).exit_code == 2
    shutil.rmtree(chain.path(kind))
    result = look(chain)
    assert result.exit_code == 2
    assert f"{chain.path(kind)}: its folder is gone" in told(result, Severity.INCOMPLETE)
    assert result.nodes[chain.artifacts[kind].id].state is NodeState.MISSING


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"parameters": {**PARAMETERS, "train_steps": 5}}, "lineage_manifest_sha256"),
        ({"run_id": "tlbbbbbbbbbb"}, "lineage_manifest_sha256"),
        ({"details": {"step": "5"}}, "lineage_step"),
        ({"dependencies": ()}, "lineage_parent_sha256"),
        ({"dependencies": (Dependency("base", "base", "/other", "f" * 64),)}, "lineage_base_sha256"),
        ({"dependencies": (Dependency("dataset", "dataset", "/other", "f" * 64),)}, "its sidecar names dataset"),
        ({"kind": "checkpoint"}, "kind"),
    ],
)
def test_a_well_formed_but_edited_sidecar_contradicts_the_store(chain: Chain, changes: dict[str, Any], name: str) -> None:
    rewrite(chain.path("hf"), **changes)
    result = look(chain)
    assert result.exit_code == 1
    assert name in told(result, Severity.MISMATCH)


def test_consistently_rewritten_bytes_and_sidecar_contradict_the_store(chain: Chain) -> None:
    folder = chain.path("hf")
    (folder / SHARD).write_bytes(b"forged")
    old = sidecar.read(folder)
    rewrite(folder, subjects=subjects(folder))
    result = look(chain)
    assert result.exit_code == 1
    assert f"digest: the store recorded {old.digest}" in told(result, Severity.MISMATCH)


def test_a_sidecar_moved_in_from_another_folder_is_found(chain: Chain) -> None:
    shutil.copy(chain.path("checkpoint") / "lineage.json", chain.path("hf") / "lineage.json")
    assert look(chain).exit_code == 1


@pytest.mark.parametrize("content", [b"", b"{}", b'{"_type": "https://in-toto.io/Statement/v0.1"}'])
def test_a_broken_or_foreign_sidecar_is_a_mismatch_that_says_what_is_wrong(chain: Chain, content: bytes) -> None:
    (chain.path("hf") / "lineage.json").write_bytes(content)
    result = look(chain)
    assert result.exit_code == 1
    assert "no sidecar of Tuneline" in told(result, Severity.MISMATCH)


@pytest.mark.parametrize(
    ("statement", "told_of"),
    [
        ("UPDATE artifact SET digest = replace(digest, 'a', 'b') WHERE kind = 'hf'", "digest"),
        ("UPDATE artifact SET metadata = json_set(metadata, '$.lineage_base_sha256', 'f') WHERE kind = 'hf'", "lineage_base_sha256"),
        ("UPDATE model_version SET artifact = (SELECT key FROM artifact WHERE kind = 'checkpoint')", "the registry says"),
    ],
)
def test_an_edited_store_contradicts_the_sidecars(chain: Chain, statement: str, told_of: str) -> None:
    sql(chain, statement)
    result = look(chain, "local-tiny@1")
    assert result.exit_code == 1
    assert told_of in told(result, Severity.MISMATCH)


@pytest.mark.parametrize(
    ("statement", "told_of"),
    [
        ("DELETE FROM event WHERE direction = 'input' AND name = 'dataset'", "the store's chain has no dataset"),
        ("DELETE FROM event WHERE direction = 'output' AND name = 'hf'", ""),
        ("UPDATE execution SET state = 'RUNNING' WHERE task = 'convert'", "convert/1, which made it, is RUNNING"),
        ("UPDATE execution SET state = 'CACHED' WHERE task = 'convert'", "only taken over from a cache"),
    ],
)
def test_a_store_with_a_hole_is_incomplete(chain: Chain, statement: str, told_of: str) -> None:
    sql(chain, statement)
    result = look(chain)
    assert result.exit_code == (2 if told_of else 0)
    assert told_of in told(result, Severity.INCOMPLETE)
    assert told_of or "does not say that convert/1 wrote it" in told(result, Severity.WARNING).replace(f"{chain.run_id}/", "")
    assert {node.artifact.kind for node in result.nodes.values()} >= set(KINDS), "the sidecars fill the hole"


def test_without_a_store_the_sidecars_are_followed_and_it_is_incomplete_at_best(chain: Chain) -> None:
    result = look(chain, store=None)
    assert result.exit_code == 2
    assert [item.what.split(":")[0] for item in result.findings] == ["no lineage store"]
    assert {node.artifact.kind: node.state for node in result.nodes.values()} == dict.fromkeys(KINDS, NodeState.VERIFIED)
    assert {item.task for item in result.graph.executions.values()} == {"stage_model", "stage_dataset", "train", "convert"}
    (chain.path("dataset") / "train.parquet").write_bytes(b"x")
    assert look(chain, store=None).exit_code == 1


def test_a_forged_ancestor_is_found_without_a_store(chain: Chain) -> None:
    """Bytes and sidecar of the data set agree, but the model's sidecar names another digest."""
    folder = chain.path("dataset")
    (folder / "train.parquet").write_bytes(b"forged")
    rewrite(folder, subjects=subjects(folder))
    result = look(chain, store=None)
    assert result.exit_code == 1
    assert str(folder) in told(result, Severity.MISMATCH)


@pytest.mark.parametrize("with_store", [True, False])
def test_a_store_moved_elsewhere_is_audited_by_its_own_bytes(chain: Chain, tmp_path: Path, with_store: bool) -> None:
    copy = replace(chain, root=tmp_path / "moved")
    shutil.copytree(chain.root, copy.root)
    hf = copy.root / chain.path("hf").relative_to(chain.root)
    dataset = copy.root / chain.path("dataset").relative_to(chain.root)
    assert look(copy, str(hf), store=copy.store if with_store else None).exit_code == (0 if with_store else 2)
    (dataset / "train.parquet").write_bytes(b"changed in the copy")
    result = look(copy, str(hf), store=copy.store if with_store else None)
    assert result.exit_code == 1
    assert str(dataset / "train.parquet") in told(result, Severity.MISMATCH)
    assert look(chain).exit_code == 0


def test_a_cached_rerun_is_listed_and_its_maker_counts(chain: Chain) -> None:
    record_cached(chain.store, run_id="tlbbbbbbbbbb", task="convert", outputs={"hf": chain.artifacts["hf"]})
    result = look(chain)
    assert result.exit_code == 0
    assert "tlbbbbbbbbbb/convert/1 (CACHED)" in told(result, Severity.INFO)
    assert {item.run_id for item in result.graph.executions.values()} == {chain.run_id}


def test_many_runs_without_user_code_do_not_crowd_the_graph(chain: Chain) -> None:
    for number in range(5):
        replace(chain, run_id=f"tlrun{number}", artifacts=dict(chain.artifacts)).stage_code()
    result = look(chain)
    assert (result.exit_code, result.findings) == (0, ())
    assert [item.task for item in result.graph.executions.values()].count("stage_code") == 1


def test_a_retry_after_a_death_between_publishing_and_recording_is_no_alarm(chain: Chain) -> None:
    """Attempt 1 wrote folder and sidecar and was killed; attempt 2 found them there and recorded them."""
    sql(chain, "DELETE FROM event WHERE direction = 'output' AND name = 'hf'")
    sql(chain, "UPDATE execution SET state = 'RUNNING', finished = NULL WHERE task = 'convert'")
    with chain.task("convert") as record:
        chain.take(record, "base", "checkpoint")
        standing = sidecar.write(chain.path("hf"), sidecar.read(chain.path("hf")))
        record.output("hf", str(chain.path("hf")), kind="hf", digest=standing.digest, metadata=standing.metadata())
    result = look(chain)
    assert (result.exit_code, result.findings) == (0, ())
    assert [(item.attempt, item.state) for item in result.graph.executions.values() if item.task == "convert"] == [(2, State.COMPLETE)]


def test_a_checkpoint_of_an_attempt_that_failed_later_may_be_resumed_from(chain: Chain) -> None:
    sql(chain, "UPDATE execution SET state = 'FAILED' WHERE task = 'train'")
    assert look(chain).exit_code == 0
    assert look(chain, str(chain.path("checkpoint"))).exit_code == 2


def test_two_contents_recorded_at_one_uri_are_told_apart_by_the_bytes(chain: Chain) -> None:
    with chain.task("convert") as record:
        other = record.output("hf", str(chain.path("hf")), kind="hf", digest="f" * 64)
    result = look(chain)
    assert (result.exit_code, result.subject) == (0, chain.artifacts["hf"].id)
    assert f"sha256:{other.digest}" in told(result, Severity.WARNING)
    (chain.path("hf") / SHARD).write_bytes(b"neither of them")
    assert look(chain).exit_code == 1
    (chain.path("hf") / "lineage.json").unlink()
    result = look(chain)
    assert result.exit_code == 1
    assert len(result.candidates) == 2
    shutil.rmtree(chain.path("hf"))
    result = look(chain)
    assert (result.exit_code, len(result.candidates), result.nodes) == (2, 2, {})


def test_a_circle_is_told_and_ends(chain: Chain) -> None:
    with chain.task("stage_model") as record:
        chain.take(record, "hf")
        record.output("base", str(chain.path("base")), kind="base", digest=chain.artifacts["base"].digest)
    assert look(chain).exit_code == 0, "the one that the sidecar names made it"
    sql(chain, "DELETE FROM event WHERE execution = (SELECT key FROM execution WHERE task = 'stage_model' AND attempt = 1)")
    result = look(chain)
    assert result.exit_code == 2
    assert "made from itself: " in told(result, Severity.INCOMPLETE)


def test_quick_finds_sizes_and_names_and_says_what_it_did_not_read(chain: Chain) -> None:
    result = look(chain, full=False)
    assert result.exit_code == 2
    assert "only names and sizes of 10 files" in told(result, Severity.INCOMPLETE)
    (chain.path("hf") / SHARD).write_bytes(b"shorter")
    assert look(chain, full=False).exit_code == 1


def test_a_quick_sidecar_finds_damage_and_is_not_called_verified(chain: Chain) -> None:
    folder = chain.root / "checkpoints" / "key" / "a1" / "step_2"
    fill(folder, {"weights": b"half trained"})
    with chain.task("train") as record:
        chain.take(record, "base", "dataset")
        dependencies = [Dependency(kind, kind, chain.artifacts[kind].uri, chain.artifacts[kind].digest) for kind in ("base", "dataset")]
        statement = record.statement(kind="checkpoint", uri=str(folder), files=(), quick=quick_files(folder), dependencies=dependencies)
        sidecar.write(folder, statement)
        record.output("checkpoint", str(folder), kind="checkpoint")
    for full in (True, False):
        result = look(chain, str(folder), full=full)
        assert result.exit_code == 2
        assert "only a quick sidecar" in told(result, Severity.INCOMPLETE)
        assert {row.state for row in result.nodes[result.subject].files} == {FileState.SAME}
    (folder / "weights").write_bytes(b"half_trained")
    assert look(chain, str(folder), full=False).exit_code == 1


def test_odd_things_in_a_folder_are_a_mismatch_and_leftovers_a_warning(chain: Chain) -> None:
    (chain.path("hf") / ".lineage.json.123-0a1b2c3d.tmp").write_bytes(b"torn")
    result = look(chain)
    assert result.exit_code == 0
    assert "left by a writer that was killed" in told(result, Severity.WARNING)
    os.mkfifo(chain.path("hf") / "pipe")
    result = look(chain)
    assert result.exit_code == 1
    assert "pipe cannot be part of a digest" in told(result, Severity.MISMATCH)


def test_an_ancestor_without_a_sidecar_is_verified_by_its_content_digest(chain: Chain) -> None:
    folder = chain.root / "datasets" / "plain"
    fill(folder, {"train.parquet": b"rows"})
    with chain.task("stage_dataset") as record:
        chain.artifacts["dataset"] = record.output("dataset", str(folder), kind="dataset", digest=content_digest(digest_folder(folder)))
    chain.train()
    target = str(chain.path("checkpoint"))
    with chain.task("train") as record:
        chain.take(record, "base", "dataset")
        fill(chain.root / "checkpoints" / "b" / "step_1", {"weights": b"w"})
        chain.seal(record, "checkpoint", chain.root / "checkpoints" / "b" / "step_1", ("base", "dataset"), {})
    target = str(chain.path("checkpoint"))
    assert look(chain, target).findings == ()
    (folder / "train.parquet").write_bytes(b"more")
    result = look(chain, target)
    assert result.exit_code == 1
    assert f"{folder}: its content digest is" in told(result, Severity.MISMATCH)


def test_bytes_that_lie_in_a_bucket_are_not_read_here(chain: Chain) -> None:
    with chain.task("convert") as record:
        chain.take(record, "base", "checkpoint")
        record.output("hf", "gs://bucket/hf/x/", kind="hf", digest="e" * 64)
    result = look(chain, "gs://bucket/hf/x")
    assert result.exit_code == 2
    assert "not on this computer" in told(result, Severity.INCOMPLETE)


def test_nothing_is_called_verified_whose_bytes_nobody_compared(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_bytes(b"{}")
    with chain.task("evaluate") as record:
        record.output("metrics", str(tmp_path / "metrics.json"), kind="metrics")
    for target in (str(tmp_path / "metrics.json"), "none"):
        result = look(chain, target)
        assert result.exit_code == 2
        assert "its bytes were not verified" in told(result, Severity.INCOMPLETE)
    assert AuditResult("x", 0.0, True, "").exit_code == 2


def test_an_artifact_that_is_a_file_has_the_files_sha256(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_bytes(b"{}")
    with chain.task("evaluate") as record:
        record.output("metrics", str(tmp_path / "metrics.json"), kind="metrics", digest=digest_file(tmp_path / "metrics.json").sha256)
    assert look(chain, str(tmp_path / "metrics.json")).exit_code == 0
    (tmp_path / "metrics.json").write_bytes(b"{1")
    assert look(chain, str(tmp_path / "metrics.json")).exit_code == 1


def test_the_result_is_plain_json(chain: Chain) -> None:
    value = json.loads(json.dumps(look(chain, "local-tiny@1").to_dict()))
    assert (value["verdict"], value["exit_code"], value["subject"]) == ("VERIFIED", 0, chain.artifacts["hf"].id)
    assert {item["kind"] for item in value["artifacts"]} == {*KINDS, "code", "registered"}
    assert len(value["executions"]) == 6
    hf = next(item for item in value["artifacts"] if item["kind"] == "hf")
    assert hf["parameters"] == PARAMETERS
    assert [row["state"] for row in hf["files"]] == ["SAME"] * 3
