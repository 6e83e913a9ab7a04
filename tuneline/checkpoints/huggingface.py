"""What surrounds the weights in a Hugging Face folder: config, generation config, tokenizer; and what they say of the weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import Entry
from tuneline.checkpoints.tensors import DType, Tensor
from tuneline.checkpoints.tree import Tree, at, join, parse_json, read_small
from tuneline.core.log import get_logger

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
#: A tokenizer is taken whole from one folder, the first that has one of the first two.
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")

HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_EMBEDDING = "embed_tokens.weight"
_LAYER = re.compile(r"(?:.*\.)?(?<!encoder\.)layers\.(\d+)\.")
#: Fewer common names than this part of the shorter list: the checkpoint names its tensors in another way than the base does.
_SAME_NAMING = 0.5

_log = get_logger("checkpoints")


def companion_files(source: Tree, companions: Sequence[str], base: Tree) -> dict[str, bytes]:
    """Config, generation config, tokenizer and processor files by name, from the checkpoint where it has them, else from the base.

    Raises:
        CheckpointError: There is no config.json of a model, or a file is a link out of the checkpoint.
    """
    folders = [*((source, companion) for companion in companions), (base, "")]
    files: dict[str, bytes] = {}
    for tree, under in folders:
        if CONFIG in tree.files(under):
            content = read_small(tree, join(under, CONFIG))
            if "model_type" in parse_json(content, at(tree, join(under, CONFIG))):
                files[CONFIG] = content
                break
    else:
        raise refused(base.name, "has no config.json of a model, nor has the checkpoint", next_move="give the base model's folder")
    _take(files, folders, (GENERATION_CONFIG,), (GENERATION_CONFIG,))
    _take(files, folders, TOKENIZER_FILES[:2], TOKENIZER_FILES)
    _take(files, folders, PROCESSOR_FILES[:2], PROCESSOR_FILES)
    return files


def _take(files: dict[str, bytes], folders: Sequence[tuple[Tree, str]], signs: Iterable[str], names: Iterable[str]) -> None:
    """Add the files `names` of the first folder that has one of `signs`."""
    for tree, under in folders:
        there = tree.files(under)
        if any(sign in there for sign in signs):
            files.update((name, read_small(tree, join(under, name))) for name in names if name in there)
            return


def ties_embeddings(config: dict[str, Any]) -> bool:
    """Whether `config` says in so many words that the head shares the embedding's weights."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(config.get("tie_word_embeddings", inner))


def tied_pair(tensors: Iterable[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The (head, embedding) that a model may tie, None if the checkpoint has not both, or several embeddings."""
    heads, embeddings = [], []
    for tensor in tensors:
        if tensor.name in HEADS:
            heads.append(tensor)
        elif tensor.name == _EMBEDDING or tensor.name.endswith("." + _EMBEDDING):
            embeddings.append(tensor)
    return (heads[0], embeddings[0]) if len(heads) == len(embeddings) == 1 else None


def adapt_config(content: bytes, *, untie: bool, dtype: DType | None) -> bytes:
    """config.json with the embeddings untied where `untie`, and its dtype set to `dtype` where that is given; else byte for byte."""
    config: dict[str, Any] = json.loads(content)
    changed = json.loads(content)
    inner = [value for key, value in changed.items() if isinstance(value, dict) and key.endswith("_config")]
    if untie:
        changed["tie_word_embeddings"] = False
        for part in inner:
            if "tie_word_embeddings" in part:
                part["tie_word_embeddings"] = False
    if dtype is not None:
        if "dtype" not in changed and "torch_dtype" not in changed:
            changed["torch_dtype"] = dtype.name
        for part in (changed, *inner):
            for key in ("dtype", "torch_dtype"):
                if isinstance(part.get(key), str):
                    part[key] = dtype.name
    if changed == config:
        return content
    return (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()


def check_shapes(tensors: Iterable[Tensor], config: dict[str, Any], where: str) -> None:
    """Compare embedding, head and number of layers with what `config` says; what it does not say is not checked.

    Raises:
        CheckpointError: They differ.
    """
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    vocabulary, hidden, layers = (text.get(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers"))
    faults, seen = [], set()
    for tensor in tensors:
        if tensor.name in HEADS or tensor.name == _EMBEDDING or tensor.name.endswith("." + _EMBEDDING):
            expected = (vocabulary or tensor.shape[0], hidden or tensor.shape[-1]) if len(tensor.shape) == 2 else ()
            if tensor.shape != expected:
                faults.append(f"{tensor.name} is {list(tensor.shape)}, the config says {vocabulary} tokens of {hidden}")
        if match := _LAYER.match(tensor.name):
            seen.add(int(match[1]))
    if seen and type(layers) is int and seen != set(range(layers)):
        faults.append(f"layers {_ranges(sorted(seen))} are there, the config says {layers}")
    if faults:
        raise refused(
            where, "does not fit its config.json", found="; ".join(faults), next_move="give the config of the model that was trained"
        )


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]} ({len(numbers)})"


def check_against_base(tensors: Sequence[Tensor], base: Mapping[str, Entry], base_name: str, where: str, *, needed: bool = False) -> None:
    """Compare names and shapes with the base model's own safetensors; the head may be on one side only.

    A base without safetensors says nothing. A checkpoint that names its tensors in another way than the base is taken as it is, and the
    log says so.

    Args:
        needed: The shapes of `tensors` are only what their parts suggest: without a base that confirms them they are refused.

    Raises:
        CheckpointError: Tensors are missing, extra or of another shape.
    """
    shapes = {name: entry.shape for name, entry in base.items()}
    ours = {tensor.name: tensor.shape for tensor in tensors}
    common = shapes.keys() & ours.keys()
    if not shapes or len(common) < _SAME_NAMING * min(len(shapes), len(ours)):
        if needed:
            raise refused(
                where,
                "does not record whole shapes, and the base does not tell them",
                next_move="give the base model with its safetensors (--base)",
            )
        if shapes:
            _log.warning("%s names its tensors in another way than %s; they are taken as they are", where, base_name)
        return
    faults = [f"{name} is missing" for name in sorted(shapes.keys() - ours.keys() - set(HEADS))]
    faults += [f"{name} is not in the base" for name in sorted(ours.keys() - shapes.keys() - set(HEADS))]
    faults += [f"{name} is {list(ours[name])}, in the base {list(shapes[name])}" for name in sorted(common) if ours[name] != shapes[name]]
    if faults:
        more = f"; and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise refused(
            where,
            f"does not hold the tensors of the base model in {base_name}",
            found="; ".join(faults[:10]) + more,
            next_move="give the base model that this training started from",
        )
