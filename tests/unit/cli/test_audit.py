from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.fakes.lineage_chain import SHARD, Chain
from tuneline.cli.audit import command, find_store


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain.make(tmp_path / "my store")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(item) for item in arguments])


def test_the_store_is_found_going_up_from_the_target(chain: Chain) -> None:
    result = call(chain.path("hf"))
    assert result.exit_code == 0
    assert result.output.startswith(f"VERIFIED  {chain.path('hf')}\n")
    assert find_store(str(chain.path("checkpoint") / "weights")) == chain.store.path


def test_or_from_the_working_folder_for_a_name(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("local-tiny@1").exit_code == 2
    monkeypatch.chdir(chain.path("base"))
    assert call("local-tiny@1").exit_code == 0


def test_exit_codes(chain: Chain, tmp_path: Path) -> None:
    shard, note = chain.path("hf") / SHARD, chain.path("hf") / "lineage.json"
    held = shard.read_bytes()
    shard.write_bytes(b"\1" + held[1:])
    result = call("local-tiny@1", "--store", chain.root)
    assert result.exit_code == 1
    assert f"MISMATCH  {shard}: CHANGED" in result.output
    shard.write_bytes(held)
    note.rename(tmp_path / "kept")
    assert call(chain.path("hf")).exit_code == 2
    shard.write_bytes(b"\1" + held[1:])
    assert call(chain.path("hf")).exit_code == 1, "a mismatch wins"


def test_without_a_store_it_says_what_cannot_be_known(chain: Chain) -> None:
    (chain.root / "lineage").rename(chain.root / "away")
    result = call(chain.path("hf"))
    assert result.exit_code == 2
    assert "no lineage store: attempts, cached reuse and registered models cannot be known" in result.output


def test_a_store_that_is_not_there_or_damaged_is_told_and_exits_2(chain: Chain, tmp_path: Path) -> None:
    result = call(chain.path("hf"), "--store", tmp_path)
    assert result.exit_code == 2
    assert "no lineage store" in result.output
    assert not (tmp_path / "lineage").exists()
    chain.store.path.write_bytes(b"damaged" * 1000)
    result = call(chain.path("hf"))
    assert result.exit_code == 2
    assert "file is not a database" in result.output


def test_quick_says_what_it_did_not_read(chain: Chain) -> None:
    result = call(chain.path("hf"), "--quick")
    assert result.exit_code == 2
    assert "only names and sizes" in result.output


def test_json_is_all_that_stdout_holds(chain: Chain, tmp_path: Path) -> None:
    result = call(chain.path("hf"), "--json", "--html", tmp_path / "report.html")
    assert json.loads(result.stdout)["verdict"] == "VERIFIED"
    assert result.stderr == f"report: {tmp_path / 'report.html'}\n"


def test_the_report_is_written_and_its_place_is_told(chain: Chain, tmp_path: Path) -> None:
    result = call(chain.path("hf"), "--html", tmp_path / "new" / "report.html")
    assert result.output.endswith(f"report: {tmp_path / 'new' / 'report.html'}\n")
    assert (tmp_path / "new" / "report.html").read_text().startswith("<!doctype html>")


def test_a_report_that_cannot_be_written_is_no_verdict(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = call(chain.path("hf"), "--html", tmp_path / "file" / "report.html")
    assert result.exit_code == 2
    assert "the report cannot be written" in result.output


def test_the_command_hands_its_exit_code_to_the_shell(chain: Chain) -> None:
    (chain.path("hf") / SHARD).write_bytes(b"x")
    done = subprocess.run([sys.executable, "-m", "tuneline.cli.main", "audit", str(chain.path("hf"))], capture_output=True, text=True)
    assert done.returncode == 1
    assert SHARD in done.stdout
