"""Pipeline, RunSpec, recipes and compiled YAML say the same; the graph keeps its rules."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.images import SENTINEL
from tuneline.config.recipes import load_recipe
from tuneline.config.spec import RunSpec, parameter_type

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
CACHED = {"stage-model", "stage-dataset", "convert"}
COMPONENTS = sorted(path.stem for path in (ROOT / "components").glob("*.py") if path.stem not in ("__init__", "images"))


def compiled(recipe: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compiled" / f"{recipe}.yaml").read_text())
    return document


def tasks_of(document: dict[str, Any]) -> dict[str, Any]:
    parts = [document["root"], *document["components"].values()]
    return {name: task for part in parts for name, task in part.get("dag", {}).get("tasks", {}).items()}


def pipeline_function() -> ast.FunctionDef:
    tree = ast.parse((ROOT / "pipelines" / "grpo.py").read_text())
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "grpo")


def test_signature_is_runspec() -> None:
    function = pipeline_function()
    found = {
        argument.arg: (ast.unparse(argument.annotation or ast.Name("?")), ast.literal_eval(default))
        for argument, default in zip(function.args.args, function.args.defaults, strict=True)
    }
    assert found == {name: (parameter_type(name), field.default) for name, field in RunSpec.model_fields.items()}


def test_docstring_is_runspec() -> None:
    text = ast.get_docstring(pipeline_function()) or ""
    found = dict(re.findall(r"(?m)^    (\w+): (.*)$", text))
    units = {name: (field.json_schema_extra or {}).get("unit", "") for name, field in RunSpec.model_fields.items()}  # type: ignore[union-attr]
    assert found == {
        name: f"{field.description}{f' [{units[name]}]' if units[name] else ''}" for name, field in RunSpec.model_fields.items()
    }


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_is_valid_and_is_what_was_compiled(recipe: str) -> None:
    values = load_recipe(ROOT / "recipes" / f"{recipe}.yaml")
    spec = RunSpec.build(values)
    inputs = compiled(recipe)["root"]["inputDefinitions"]["parameters"]
    assert RunSpec.build({name: definition["defaultValue"] for name, definition in inputs.items()}) == spec
    assert set(inputs) == set(RunSpec.model_fields)
    assert all(definition["description"] for definition in inputs.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_the_same_graph(recipe: str) -> None:
    """What runs on a laptop is what runs in the cloud: only names and default values differ."""

    def graph(name: str) -> dict[str, Any]:
        document = compiled(name)
        document["pipelineInfo"].pop("name")
        for definition in document["root"]["inputDefinitions"]["parameters"].values():
            definition.pop("defaultValue")
        return document

    assert graph(recipe) == graph("local-tiny")


@pytest.mark.parametrize("recipe", RECIPES)
def test_caching_is_on_for_staging_and_convert_only(recipe: str) -> None:
    found = {name for name, task in tasks_of(compiled(recipe)).items() if task.get("cachingOptions", {}).get("enableCache")}
    groups = {name for name in found if not name.startswith("comp-") and name in ("run", "passed")}
    assert found - groups == CACHED


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_cached_task_takes_no_job_name_and_no_provision_output(recipe: str) -> None:
    tasks = tasks_of(compiled(recipe))
    for name in CACHED:
        text = yaml.safe_dump(tasks[name].get("inputs", {}))
        assert "job_name" not in text
        assert not re.search(r"producerTask: (provision|preflight)", text)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_made_comes_after_the_store_that_records_it(recipe: str) -> None:
    tasks = tasks_of(compiled(recipe))
    assert "provision-storage" in tasks["provision-network"]["dependentTasks"]
    for name in ("provision-cluster", "provision-filesystem"):
        assert "provision-network" in tasks[name]["dependentTasks"]
    assert {"provision-cluster", "provision-filesystem"} <= set(tasks["launch-raycluster"]["dependentTasks"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_executor_hands_over_to_python_and_installs_nothing(recipe: str) -> None:
    executors = compiled(recipe)["deploymentSpec"]["executors"]
    assert len(executors) == len(COMPONENTS)
    for executor in executors.values():
        text = "\n".join(executor["container"]["command"])
        assert 'exec "python3" -m kfp.dsl.executor_main' in text
        assert "pip install" not in text
        assert executor["container"]["image"] == SENTINEL


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_compiled_pipeline_is_a_pipeline_spec(recipe: str) -> None:
    from google.protobuf import json_format
    from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec

    document = compiled(recipe)
    assert json_format.ParseDict(document, PipelineSpec()).pipeline_info.name == f"tuneline-grpo-{recipe}"


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_is_thin_and_calls_the_task_of_its_name(name: str) -> None:
    text = (ROOT / "components" / f"{name}.py").read_text()
    assert f"from tuneline.tasks import {name} as task" in text
    assert len(text.splitlines()) <= 40
    assert (ROOT / "tuneline" / "tasks" / f"{name}.py").exists()


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_call_fits_the_task(name: str) -> None:
    """The arguments in the component's one call bind to the task's `run`."""
    tree = ast.parse((ROOT / "components" / f"{name}.py").read_text())
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "task.run")
    run = __import__(f"tuneline.tasks.{name}", fromlist=["run"]).run
    inspect.signature(run).bind(*call.args)


def run_compile(*arguments: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "compile.py", *arguments], cwd=ROOT, text=True, capture_output=True, env={"PYTHONHASHSEED": seed, "PATH": ""}
    )


def test_compiling_is_byte_identical_from_run_to_run(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        done = run_compile("--out", str(tmp_path / seed), seed=seed)
        assert done.returncode == 0, done.stderr
    for recipe in RECIPES:
        first, second = ((tmp_path / seed / f"{recipe}.yaml").read_bytes() for seed in ("1", "2"))
        assert first == second == (ROOT / "compiled" / f"{recipe}.yaml").read_bytes()


def test_check_names_file_and_line_of_a_drift_and_ignores_the_image(tmp_path: Path) -> None:
    for recipe in RECIPES:
        text = (ROOT / "compiled" / f"{recipe}.yaml").read_text()
        (tmp_path / f"{recipe}.yaml").write_text(text.replace(SENTINEL, "example.test/mine:1"))
    assert run_compile("--check", "--out", str(tmp_path)).returncode == 0
    target = tmp_path / "local-tiny.yaml"
    lines = target.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "enableCache: true" in line)
    lines[number - 1] = lines[number - 1].replace("true", "false")
    target.write_text("\n".join(lines) + "\n")
    done = run_compile("--check", "--out", str(tmp_path))
    assert done.returncode == 1
    assert f"local-tiny.yaml:{number}: is 'enableCache: false', compiles to 'enableCache: true'" in done.stdout


def test_image_replaces_the_sentinel_and_nothing_else(tmp_path: Path) -> None:
    image = "example.test/team/steps@sha256:" + "a" * 64
    assert run_compile("--image", image, "--out", str(tmp_path)).returncode == 0
    for recipe in RECIPES:
        assert (tmp_path / f"{recipe}.yaml").read_text().replace(image, SENTINEL) == (ROOT / "compiled" / f"{recipe}.yaml").read_text()


def test_a_bad_image_is_refused(tmp_path: Path) -> None:
    done = run_compile("--image", "not an image", "--out", str(tmp_path))
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
