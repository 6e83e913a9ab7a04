"""Compiled pipelines are found by recipe, and --set is understood or refused."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tuneline.cli import compiled
from tuneline.cli.main import group
from tuneline.config.spec import RunSpec
from tuneline.core.errors import SpecError


def test_a_recipe_is_found_by_name_and_by_path() -> None:
    path = compiled.find("local-tiny")
    assert compiled.find(str(path)) == path
    assert RunSpec.build(compiled.defaults(path)).train_engine == "trl"


def test_an_unknown_recipe_lists_those_that_exist() -> None:
    with pytest.raises(SpecError, match=r"(?s)recipe 'local-tony'.*local-tiny|1 parameter"):
        compiled.find("local-tony")


@pytest.mark.parametrize(
    "content", [b"a: [", b"a: 1", b"[]", b"", b"\xff\xfe", b"root: {inputDefinitions: {parameters: {x: {defaultValue: 1}}}}"]
)
def test_a_file_that_is_no_compiled_pipeline_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        compiled.defaults(compiled.find(str(path)))
    assert "no pipeline that compile.py made" in caught.value.faults[0]


def test_a_store_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["--store", str(tmp_path / "file" / "store")], ["--set", "output_root="]):
        result = CliRunner().invoke(group, ["run", *arguments])
        assert isinstance(result.exception, SpecError)
        assert result.exception.faults[0].startswith("output_root=")


def test_assignments() -> None:
    assert compiled.assignments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(click.BadParameter, match="want name=value"):
        compiled.assignments(["train_steps"])


@pytest.mark.parametrize("sets", [["train_lerning_rate=1"], ["train_steps=many", "gpu_workers=0"], ["train_batch_size=100"]])
def test_run_refuses_before_anything_starts(sets: list[str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = [argument for value in sets for argument in ("--set", value)]
    result = CliRunner().invoke(group, ["run", "--store", str(store), *arguments])
    assert isinstance(result.exception, SpecError)
    assert len(result.exception.faults) == len(sets)
    assert not store.exists()


def test_params_lists_every_parameter() -> None:
    result = CliRunner().invoke(group, ["params", "--json"])
    assert result.exit_code == 0
    assert all(f'"{name}"' in result.output for name in RunSpec.model_fields)
    assert "train_learning_rate" in CliRunner().invoke(group, ["params"], env={"COLUMNS": "200"}).output


def test_run_is_for_this_computer(tmp_path: Path) -> None:
    gke = ["infra_platform=gke", "infra_project=p", "infra_region=us-central1", "infra_zone=us-central1-b", "output_root=gs://bucket/x"]
    gke += ["gpu_machine=a4-highgpu-8g", "gpu_reservation=r"]
    arguments = [argument for value in gke for argument in ("--set", value)]
    result = CliRunner().invoke(group, ["run", "--store", str(tmp_path / "store"), *arguments])
    assert isinstance(result.exception, SpecError)
    assert "`tuneline run` runs on this computer" in str(result.exception)
    assert not (tmp_path / "store").exists()
