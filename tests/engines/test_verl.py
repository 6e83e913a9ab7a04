"""Our arguments under verl's own configuration and checks, for the versions that people run."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from tests.engines.packages import ROOT, run
from tests.engines.specs import CODE, inputs, parameters, random_parameters, spec, verdict
from tuneline.config.engine_rules import VERSIONS, version_of
from tuneline.config.recipes import load_recipe
from tuneline.config.spec import RunSpec
from tuneline.engines.verl_command import build_argv

RECIPES = sorted(path for path in (ROOT / "recipes").glob("verl-*.yaml"))
RANDOM_SPECS = 200


def judge(version: str, specs: list[RunSpec], **changes: Any) -> list[str]:
    """verl's verdict on each: '' where it takes it."""
    overrides = [list(build_argv(one, inputs(code_dir="/data/code/0123" if one.train_code_uri else "", **changes))[3:]) for one in specs]
    result: list[str] = json.loads(run(f"verl-{version}", "verl_probe.py", json.dumps(overrides)).splitlines()[-1])
    return result


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_the_tutorials_runs_compose_and_are_valid(version: str) -> None:
    systems = ["standard", "autopilot"] if version == "0.6.1" else ["standard", "autopilot", "a4x"]
    specs = [spec(system, train_engine_version=version) for system in systems]
    specs.append(spec(train_engine_version=version, train_kl_coef=0.001, train_mini_batch=512, train_micro_batch=8, train_lora_rank=32))
    assert judge(version, specs) == [""] * len(specs)
    assert judge(version, specs, resume_from="/data/checkpoints/0123/it's = [a1], b/global_step_10/") == [""] * len(specs)


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_a_conversation_with_a_tool_composes(version: str) -> None:
    one = spec(train_engine_version=version, train_tools="conf/calculator.yaml", train_max_turns=2, train_code_uri=CODE)
    other = spec(train_engine_version=version, train_agent_loop="loops.yaml:my_loop", train_max_turns=4, train_code_uri=CODE)
    assert judge(version, [one, other]) == ["", ""]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_composes(path: Any) -> None:
    one = RunSpec.build(load_recipe(path))
    assert judge(version_of(one), [one]) == [""]


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_random_valid_specs_compose_and_are_valid(version: str) -> None:
    valid: list[RunSpec] = []
    for seed in count():
        one, faults = verdict(random_parameters(seed, version))
        if not faults:
            valid.append(one)
        if len(valid) == RANDOM_SPECS:
            break
    assert [message for message in judge(version, valid) if message] == []


#: Rules of ours that verl does not have, and why we have them. Everything else that one of us refuses, the other refuses too.
STRICTER = {
    "0.6.1": {
        "is no whole number of updates": "the last update of a step has fewer completions but is scaled as if it had all",
        "train_mini_batch=": "an update that does not divide over the GPUs is rounded down silently",
    },
    "0.9.1": {"is no whole number of updates": "the missing completions are filled with padding that trains nothing"},
}


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_batch_rules_agree_with_verls(version: str) -> None:
    names = ("train_batch_size", "train_mini_batch", "train_micro_batch")
    rejected, accepted = [], []
    for seed in range(1000):
        one, faults = verdict(random_parameters(seed, version))
        if any(not fault.startswith(names) for fault in faults):
            continue
        ours = [fault for fault in faults if not any(part in fault for part in STRICTER[version])]
        if ours:
            rejected.append(one)
        elif not faults:
            accepted.append(one)
        if len(rejected) >= 40 and len(accepted) >= 40:
            break
    assert len(rejected) >= 40
    assert judge(version, accepted[:40]) == [""] * 40
    taken = [one for one, message in zip(rejected, judge(version, rejected), strict=True) if not message]
    assert [(one.train_batch_size, one.train_mini_batch, one.train_micro_batch, one.gpu_nodes) for one in taken] == []


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_where_we_are_stricter_verl_takes_it(version: str) -> None:
    """The list above says what it says: verl really accepts these."""
    shown = [parameters(train_engine_version=version, train_batch_size=2048, train_mini_batch=768)]
    if version == "0.6.1":
        shown.append(parameters(train_engine_version=version, train_batch_size=96, train_mini_batch=24, train_micro_batch=1))
    for values in shown:
        one, faults = verdict(values)
        assert len(faults) == 1
        assert any(part in faults[0] for part in STRICTER[version])
        assert judge(version, [one]) == [""]


@pytest.mark.parametrize("version", VERSIONS["verl"])
def test_the_recorded_settings_are_verls(version: str) -> None:
    from tuneline.config.engine_settings import recorded

    found = run(f"verl-{version}", "record.py", VERSION=f"verl-{version}", PRINT="1").split()
    assert set(found) == set(recorded("verl", version))
