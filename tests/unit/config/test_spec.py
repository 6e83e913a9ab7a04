"""RunSpec: every fault at once, each with the choices or the range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuneline.config.spec import RunSpec, describe, parameter_type
from tuneline.core.errors import SpecError

# Each set: parameters, and what the message must hold for each fault that they have.
INVALID: list[tuple[dict[str, Any], list[str]]] = [
    ({"train_lerning_rate": 1e-3}, ["did you mean train_learning_rate?"]),
    ({"learning_rate": 1e-3}, ["did you mean train_learning_rate?"]),
    ({"zzzz": 1}, ["zzzz: no such parameter", "tuneline params"]),
    ({"infra_platform": "aws"}, ["infra_platform='aws'", "one of local"]),
    ({"train_engine": "ppo"}, ["one of trl"]),
    ({"data_adapter": "csv"}, ["one of verl, gsm8k"]),
    ({"gpu_workers": 0}, ["gpu_workers=0", ">= 1", "<= 64"]),
    ({"gpu_workers": 65}, ["<= 64"]),
    ({"gpu_workers": "two"}, ["whole number"]),
    ({"train_steps": 0}, ["train_steps=0", ">= 1"]),
    ({"train_steps": 1.5}, ["train_steps=1.5", "whole number"]),
    ({"train_learning_rate": 0}, ["> 0", "<= 1"]),
    ({"train_learning_rate": "fast"}, ["train_learning_rate='fast'", "number"]),
    ({"train_kl_coef": -0.1}, [">= 0"]),
    ({"train_temperature": 0}, ["> 0"]),
    ({"train_batch_size": 100, "train_group_size": 16}, ["100 = 6 x 16 + 4", "choose 96 or 112"]),
    ({"train_batch_size": 96, "gpu_workers": 5, "train_group_size": 16}, ["96 = 19 x 5 + 1", "choose 95 or 100"]),
    ({"train_steps": 10, "train_save_every": 20}, ["beyond train_steps=10", "choose 1 to 10"]),
    ({"output_model_name": "My Model"}, ["output_model_name='My Model'", "a-z"]),
    ({"output_root": "relative/folder"}, ["must be an absolute folder"]),
    ({"output_root": "/data/python3/store"}, ["may not contain 'python3'"]),
    ({"ops_rerun_token": "{{$.inputs.parameters['spec']}}"}, ["may not contain '{{$'"]),
    ({"train_steps": True, "train_learning_rate": True}, ["train_steps=True: must be whole", "train_learning_rate=True: must be number"]),
    ({"train_seed": "9" * 5000}, ["(5002 characters)", "whole number"]),
    ({"model_id": "nosuch"}, ["tiny-qwen2", "absolute folder", "owner/name"]),
    ({"model_id": "/no/such/folder"}, ["no such folder"]),
    ({"model_revision": "main"}, ["only a Hugging Face id has revisions"]),
    ({"data_id": "arithmetic", "data_adapter": "gsm8k"}, ["choose verl"]),
    ({"train_reward": "mymodule:score"}, ["train_code_uri is ''"]),
    ({"train_reward": "best reward"}, ["gsm8k, exact", "module:function"]),
    ({"train_code_uri": "code"}, ["must be an absolute folder"]),
    ({"output_min_score": 2, "output_shard_mb": 0}, ["output_min_score=2", "<= 1", "output_shard_mb=0", ">= 1"]),
    ({"train_force": "perhaps"}, ["true or false"]),
    (
        {"gpu_workers": -1, "train_engine": "x", "train_lr": 1, "train_batch_size": 33, "train_group_size": 16},
        ["gpu_workers=-1", "one of trl", "train_lr", "33 = 2 x 16 + 1"],
    ),
]


@pytest.mark.parametrize(("parameters", "wanted"), INVALID)
def test_invalid_sets_are_refused_with_every_fault(parameters: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.build(parameters)
    text = str(caught.value)
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize("name", ["model_id", "data_id", "train_code_uri"])
@pytest.mark.parametrize("below", [".", "store", "a link/store"])
def test_a_folder_that_holds_the_store_is_refused(name: str, below: str, tmp_path: Path) -> None:
    source, other = tmp_path / "project", tmp_path / "project-2"
    source.mkdir()
    other.mkdir()
    (tmp_path / "a link").symlink_to(source)
    root = str((tmp_path if "link" in below else source) / below)
    with pytest.raises(SpecError) as caught:
        RunSpec.build({name: str(source), "output_root": root})
    assert [fault for fault in caught.value.faults if "holds output_root=" not in fault] == []
    assert RunSpec.build({name: str(source), "output_root": str(other)})
    assert RunSpec.build({name: str(source), "output_root": str(tmp_path)})


def test_a_fault_in_one_parameter_does_not_hide_a_rule_between_others() -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.build({"train_steps": "many", "train_batch_size": 100})
    assert len(caught.value.faults) == 2


def test_a_rule_is_not_judged_on_a_faulty_parameter() -> None:
    with pytest.raises(SpecError) as caught:
        RunSpec.build({"train_batch_size": "100 or so"})
    assert len(caught.value.faults) == 1


def test_texts_and_floats_of_a_pipeline_become_typed_values() -> None:
    spec = RunSpec.build({"train_steps": "20", "train_save_every": 10.0, "train_learning_rate": "1e-3", "train_force": "true"})
    assert (spec.train_steps, spec.train_save_every, spec.train_learning_rate, spec.train_force) == (20, 10, 1e-3, True)


def test_json_round_trip() -> None:
    spec = RunSpec.build({"train_seed": 7})
    assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("name", list(RunSpec.model_fields))
def test_every_parameter_says_what_it_is(name: str) -> None:
    assert RunSpec.model_fields[name].description
    assert describe(name)
    assert parameter_type(name) in ("int", "float", "bool", "str")
    assert name.split("_")[0] in ("infra", "gpu", "model", "data", "train", "output", "ops")
