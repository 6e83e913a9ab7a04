"""Rules between parameters. Each yields the names it reads and a fault with the arithmetic, so all can be told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tuneline.config import engine_rules, gke_rules

if TYPE_CHECKING:
    from tuneline.config.spec import RunSpec

Fault = tuple[tuple[str, ...], str]

BUILT_MODELS = ("tiny-qwen2",)
BUILT_DATASETS = ("arithmetic",)
NAMED_REWARDS = ("gsm8k", "exact")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MODEL_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


def check(spec: RunSpec) -> Iterator[Fault]:
    """Every fault of these parameters that no single parameter shows."""
    yield from _batch(spec)
    yield from _names(spec)
    yield from _folders(spec)
    yield from _local(spec)
    yield from engine_rules.check(spec)
    if spec.infra_platform == "gke":
        yield from gke_rules.check(spec)


def _batch(spec: RunSpec) -> Iterator[Fault]:
    batch, group, workers = spec.train_batch_size, spec.train_group_size, spec.gpu_workers
    if batch % group:
        yield (
            ("train_batch_size", "train_group_size"),
            f"train_batch_size={batch} is not a multiple of train_group_size={group} "
            f"({batch} = {batch // group} x {group} + {batch % group}); choose {_multiples(batch, group)}",
        )
    if spec.train_engine == "trl" and batch % workers:
        yield (
            ("train_batch_size", "gpu_workers", "train_engine"),
            f"train_batch_size={batch} does not divide over gpu_workers={workers} "
            f"({batch} = {batch // workers} x {workers} + {batch % workers}); choose {_multiples(batch, workers)}",
        )
    if spec.train_save_every > spec.train_steps:
        yield (
            ("train_save_every", "train_steps"),
            f"train_save_every={spec.train_save_every} is beyond train_steps={spec.train_steps}: "
            f"no checkpoint before the last step; choose 1 to {spec.train_steps}",
        )


def _multiples(near: int, of: int) -> str:
    below = near - near % of
    return " or ".join(str(value) for value in (below, below + of) if value)


def _names(spec: RunSpec) -> Iterator[Fault]:
    if not _MODEL_NAME.fullmatch(spec.output_model_name):
        yield (
            ("output_model_name",),
            f"output_model_name={spec.output_model_name!r}: must start with a-z, go on with a-z, 0-9 or '-', at most 63 characters",
        )
    for name, built in (("model", BUILT_MODELS), ("data", BUILT_DATASETS)):
        value, revision = getattr(spec, f"{name}_id"), getattr(spec, f"{name}_revision")
        hub = bool(_HUB_ID.fullmatch(value))
        if not (value in built or os.path.isabs(value) or hub):
            yield (
                (f"{name}_id",),
                f"{name}_id={value!r}: must be one of {', '.join(built)}, an absolute folder, or a Hugging Face id (owner/name)",
            )
        elif revision and not hub:
            yield ((f"{name}_id", f"{name}_revision"), f"{name}_revision={revision!r}: only a Hugging Face id has revisions; leave it ''")
    if spec.data_id in BUILT_DATASETS and spec.data_adapter != "verl":
        yield (("data_id", "data_adapter"), f"data_adapter={spec.data_adapter!r}: {spec.data_id} is made in verl's schema; choose verl")
    reward, code = spec.train_reward, spec.train_code_uri
    if reward not in NAMED_REWARDS:
        if not _FUNCTION.fullmatch(reward):
            yield (("train_reward",), f"train_reward={reward!r}: must be one of {', '.join(NAMED_REWARDS)}, or module:function")
        elif not code:
            yield (
                ("train_reward", "train_code_uri"),
                f"train_reward={reward!r} is user code but train_code_uri is ''; give the folder that holds {reward.split(':')[0]}",
            )


def _folders(spec: RunSpec) -> Iterator[Fault]:
    for name in ("model_id", "data_id", "train_code_uri"):
        value = getattr(spec, name)
        if os.path.isabs(value) and not os.path.isdir(value):
            yield ((name,), f"{name}={value!r}: no such folder")
        elif spec.output_root and os.path.isabs(value) and _lies_in(spec.output_root, value):
            yield (
                (name, "output_root"),
                f"{name}={value!r} holds output_root={spec.output_root!r}, whose content would be staged with it and grow with every run; "
                "choose an output_root (--store) outside of it",
            )
    if spec.train_code_uri and not os.path.isabs(spec.train_code_uri):
        yield (("train_code_uri",), f"train_code_uri={spec.train_code_uri!r}: must be an absolute folder")
    if spec.infra_platform == "local" and spec.output_root and not os.path.isabs(spec.output_root):
        yield (("output_root",), f"output_root={spec.output_root!r}: must be an absolute folder")


def _lies_in(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or below it, symbolic links followed."""
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([path, folder]) == folder


def _local(spec: RunSpec) -> Iterator[Fault]:
    # kfp.local replaces every 'python3' in a task's arguments by the interpreter's path; every runner of pipelines fills placeholders in.
    for name, value in vars(spec).items():
        for text in ("python3", "{{$"):
            if isinstance(value, str) and text in value:
                yield ((name,), f"{name}={value!r}: may not contain {text!r}, which the pipeline runner rewrites; choose another name")
