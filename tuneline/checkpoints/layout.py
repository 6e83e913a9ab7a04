"""Which kind of checkpoint a folder holds, and where in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tuneline.checkpoints.dcp import METADATA
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tree import Tree, at, join

DCP, SHARDED, FSDP, HF, ADAPTER = "dcp", "sharded safetensors", "verl fsdp", "hugging face", "peft adapter"

SHARD_FILE = re.compile(r"shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors")
RANK_FILE = re.compile(r"model_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
STEP_FOLDER = re.compile(r"(?:global_)?step_(\d{1,12})")

_WEIGHTS = {
    "": "the folder itself",
    "model": "NeMo RL v2, given its weights/",
    "weights": "the trl engine's step_N; NeMo RL, given its policy/",
    "weights/model": "NeMo RL v2, given its policy/",
    "policy/weights": "NeMo RL v1, given its step_N",
    "policy/weights/model": "NeMo RL v2, given its step_N",
}
_ACTOR = {"": "verl, given its actor/", "actor": "verl, given its global_step_N"}
#: Where a checkpoint of each kind may lie below the folder that a person names, and who writes it there.
PLACES: dict[str, dict[str, str]] = {
    DCP: _WEIGHTS,
    SHARDED: _WEIGHTS,
    FSDP: _ACTOR,
    HF: {"": "a Hugging Face model"},
    ADAPTER: {"": "PEFT"},
}
_SIGNS: dict[str, tuple[str, Callable[[str], object]]] = {
    DCP: (METADATA, lambda name: name == METADATA),
    SHARDED: ("shard-*-model-*.safetensors", SHARD_FILE.fullmatch),
    FSDP: ("model_world_size_*_rank_*.pt", RANK_FILE.fullmatch),
    HF: ("model.safetensors or its index", lambda name: name in ("model.safetensors", "model.safetensors.index.json")),
    ADAPTER: ("adapter_model.safetensors", lambda name: name == "adapter_model.safetensors"),
}
_INNER = ("model", "weights", "policy", "actor")
#: Folders beside the weights in which config and tokenizer lie.
_BESIDE = ("tokenizer", "huggingface", ".hf_metadata")

_MEGATRON_PLACES = ("", "actor", "model", "weights", "policy/weights", "policy/weights/model", "actor/model")


@dataclass(frozen=True)
class Layout:
    """A checkpoint that was found.

    Attributes:
        kind: DCP, SHARDED, FSDP, HF or ADAPTER.
        under: The folder with its files, relative to the tree.
        companions: Folders of the same checkpoint where its config and tokenizer may lie, nearest first.
    """

    kind: str
    under: str
    companions: tuple[str, ...]


def split_source(source: str) -> tuple[str, str]:
    """(the folder of the whole step, what of it `source` names): a person may name the step or the weights in it."""
    root, under = source.rstrip("/"), ""
    while root.rpartition("/")[2] in _INNER:
        root, _, name = root.rpartition("/")
        under = join(name, under)
    return root, under


def steps(tree: Tree, under: str = "") -> dict[int, str]:
    """Folders named as training steps directly in `under`, by step, newest first."""
    found = {int(match[1]): name for name in tree.folders(under) if (match := STEP_FOLDER.fullmatch(name))}
    return dict(sorted(found.items(), reverse=True))


def detect(tree: Tree, under: str = "") -> Layout:
    """The checkpoint at or below `under`.

    Raises:
        CheckpointError: There is none, more than one, or one of Megatron; it says what was looked for and what is there.
    """
    listed = {place: tree.files(join(under, place)) for places in PLACES.values() for place in places}
    _refuse_megatron(tree, under)
    found = [(kind, place) for kind, places in PLACES.items() for place in places if any(map(_SIGNS[kind][1], listed[place]))]
    if len(found) > 1 and found[-1][0] == ADAPTER and found[-2][1] == found[-1][1]:
        found.pop()  # a model beside its adapter
    if len(found) > 1:
        choices = [f"{at(tree, join(under, place))} ({kind})" for kind, place in found]
        raise refused(at(tree, under), "holds more than one checkpoint", choices=choices, next_move="give one of them")
    if not found:
        names = [*tree.files(under), *tree.folders(under)]
        looked = [
            f"{at(tree, join(under, place, _SIGNS[kind][0]))} ({writer})"
            for kind, places in PLACES.items()
            for place, writer in places.items()
        ]
        raise refused(
            at(tree, under),
            "holds no checkpoint that can be read",
            asked="; ".join(looked),
            found=", ".join(sorted(names)[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "an empty folder",
            next_move="give the folder of one finished step",
        )
    kind, place = found[0]
    return Layout(kind, join(under, place), _companions(tree, join(under, place)))


def _refuse_megatron(tree: Tree, under: str) -> None:
    for place in _MEGATRON_PLACES:
        where = join(under, place)
        folders = tree.folders(where)
        sign = next((name for name in folders if name == "dist_ckpt" or re.fullmatch(r"iter_\d+|mp_rank_\d+(_\d+)*", name)), "")
        if not sign and "common.pt" in tree.files(where):
            sign = "common.pt"
        if sign:
            raise refused(
                at(tree, where),
                f"is a Megatron checkpoint ({sign}), whose tensors are cut and named in Megatron's own way",
                next_move="convert it with Megatron-Bridge (NeMo RL: examples/converters/convert_megatron_to_hf.py; verl: python -m"
                " verl.model_merger merge --backend megatron), then give the Hugging Face folder that it writes",
            )


def _companions(tree: Tree, under: str) -> tuple[str, ...]:
    """The folder and those above it that belong to the same checkpoint, each followed by what lies beside it."""
    climbed = [under]
    while climbed[-1].rpartition("/")[2] in _INNER:
        climbed.append(climbed[-1].rpartition("/")[0])
    return tuple(join(place, name) for place in climbed for name in ("", *(name for name in _BESIDE if name in tree.folders(place))))
