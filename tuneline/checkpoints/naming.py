"""From the names that a trainer gives tensors to those that Hugging Face, vLLM and people expect, by architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import Chunk, Tensor
from tuneline.core.log import get_logger

Renames = tuple[tuple[re.Pattern[str], str], ...]

#: What wrappers of torch put into names, anywhere in them.
_WRAPPERS = re.compile(r"(?<![^.])(?:_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module)\.")
_PEFT = "base_model.model."
#: transformers from version 5 holds the experts of a layer in two tensors; checkpoints and vLLM have three for each expert.
_FUSED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")

_log = get_logger("checkpoints")


def _renames(*pairs: tuple[str, str]) -> Renames:
    return tuple((re.compile(pattern), name) for pattern, name in pairs)


_MULTIMODAL = (
    (r"^model\.language_model\.", "language_model.model."),
    (r"^model\.multi_modal_projector\.", "multi_modal_projector."),
    (r"^lm_head\.", "language_model.lm_head."),
)
#: transformers 5 dropped a level of the vision tower; files from before have it.
_VISION_MODEL = (r"^model\.vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.")
_VISION = (r"^model\.vision_tower\.", "vision_tower.")


@dataclass(frozen=True)
class Architecture:
    """What is known of a model type.

    Attributes:
        renames: Ways to rename what transformers holds in memory; the one that fits the base best is used, else the first.
        norms, router: Patterns of the tensors that a dtype policy may leave in float32.
        experts: Its fused experts are split.
    """

    renames: tuple[Renames, ...] = ((),)
    norms: str = r"norm\.(weight|bias)$"
    router: str = r"(?!)"
    experts: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3_moe": Architecture(router=r"\.mlp\.gate\.weight$", experts=True),
    "gemma3_text": Architecture(),
    "gemma3": Architecture(
        renames=(_renames(*_MULTIMODAL, _VISION_MODEL, _VISION), _renames(*_MULTIMODAL, _VISION)),
        norms=r"norm\d?\.(weight|bias)$",
    ),
}


def plain_names(tensors: Iterable[Tensor]) -> list[Tensor]:
    """`tensors` without what FSDP, compile, activation checkpointing and PEFT put into names. CheckpointError if two become one."""
    renamed = [replace(tensor, name=_plain(tensor.name)) for tensor in tensors]
    return _distinct(renamed)


def _plain(name: str) -> str:
    name = _WRAPPERS.sub("", name)
    return name.removeprefix(_PEFT).replace(".base_layer.", ".")


def model_names(tensors: Sequence[Tensor], config: Mapping[str, Any], base: Iterable[str], where: str) -> list[Tensor]:
    """`tensors` under the names of Hugging Face checkpoints, fused experts split; sorted.

    Args:
        base: Names in the base model, which decide between several ways; empty where they are not known.

    Raises:
        CheckpointError: Two tensors get one name.
    """
    model_type = str(config.get("model_type", ""))
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        _log.warning("%s: %r is no architecture with rules of its own; tensors keep their names", where, model_type)
        return sorted(tensors, key=lambda tensor: tensor.name)
    wanted = set(base)
    ways = ((), *architecture.renames) if wanted else architecture.renames
    named = [_distinct([replace(tensor, name=_rename(tensor.name, way)) for tensor in tensors]) for way in ways]
    if architecture.experts and not any(_FUSED.fullmatch(name) for name in wanted):
        named = [[part for tensor in way for part in _split_experts(tensor, where)] for way in named]
    best = max(named, key=lambda way: len(wanted & {tensor.name for tensor in way}))  # the first of equals
    return sorted(best, key=lambda tensor: tensor.name)


def _rename(name: str, way: Renames) -> str:
    for pattern, to in way:
        changed, count = pattern.subn(to, name)
        if count:
            return changed
    return name


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    seen: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in seen:
            raise refused(tensor.origin, f"and {seen[tensor.name].origin} are both {tensor.name}")
        seen[tensor.name] = tensor
    return tensors


def _split_experts(tensor: Tensor, where: str) -> list[Tensor]:
    """A fused tensor [experts, rows, columns] as one or two [rows, columns] an expert; any other as it is."""
    match = _FUSED.fullmatch(tensor.name)
    if match is None:
        return [tensor]
    if len(tensor.shape) != 3 or (match[2] == "gate_up_proj" and tensor.shape[1] % 2):
        raise refused(where, f"holds {tensor.name} of shape {list(tensor.shape)}, which is no row of experts")
    experts, rows, _ = tensor.shape
    half = rows // 2
    parts = {"down_proj": (0, rows)} if match[2] == "down_proj" else {"gate_proj": (0, half), "up_proj": (half, rows)}
    return [
        _slice(tensor, f"{match[1]}.{expert}.{part}.weight", expert, first, last)
        for expert in range(experts)
        for part, (first, last) in parts.items()
    ]


def _slice(tensor: Tensor, name: str, index: int, first: int, last: int) -> Tensor:
    """`tensor[index, first:last]`. Its chunks stay contiguous; their CRC-32 is lost, for it is that of the whole."""
    chunks = []
    for chunk in tensor.chunks:
        row = chunk.sizes[2]
        begin, end = max(first, chunk.offsets[1]), min(last, chunk.offsets[1] + chunk.sizes[1])
        if not chunk.offsets[0] <= index < chunk.offsets[0] + chunk.sizes[0] or begin >= end:
            continue
        line = (index - chunk.offsets[0]) * chunk.sizes[1] + begin - chunk.offsets[1]
        start = chunk.start + line * row * tensor.dtype.size
        chunks.append(Chunk((begin - first, chunk.offsets[2]), (end - begin, row), chunk.blob, start))
    return Tensor(name, tensor.dtype, (last - first, tensor.shape[2]), tuple(chunks), tensor.origin)


def float32_names(names: Iterable[str], rules: Sequence[str], config: Mapping[str, Any]) -> set[str]:
    """The `names` that a dtype policy must leave: those that match a rule.

    Args:
        rules: `norms`, `router`, or regular expressions that are searched in the name.

    Raises:
        CheckpointError: A rule is no regular expression.
    """
    architecture = ARCHITECTURES.get(str(config.get("model_type", "")), Architecture(router=r"\.(gate|router)\.weight$"))
    known = {"norms": architecture.norms, "router": architecture.router}
    try:
        patterns = [re.compile(known.get(rule, rule)) for rule in rules]
    except re.error as error:
        raise refused("fp32", f"a rule is no regular expression: {error}", choices=list(known)) from error
    return {name for name in names if any(pattern.search(name) for pattern in patterns)}
