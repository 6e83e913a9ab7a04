"""What surrounds the weights in a Hugging Face folder: config, generation config, tokenizer; and what they say of the weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import read_folder
from tuneline.checkpoints.tensors import DType, Tensor
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

HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
_MAX_FILE = 256 << 20
#: Fewer common names than this part of the shorter list: the checkpoint names its tensors in another way than the base does.
_SAME_NAMING = 0.5

_log = get_logger("checkpoints")


def companion_files(companions: Sequence[Path], base_dir: Path) -> dict[str, bytes]:
    """Config, generation config, tokenizer and processor files by name, from the checkpoint where it has them, else from the base.

    Raises:
        CheckpointError: There is no config.json of a model, or a file is a link out of the checkpoint.
    """
    folders = [*companions, base_dir]
    files: dict[str, bytes] = {}
    for folder in folders:
        content = _read(folder, CONFIG, trusted=folder is base_dir)
        if content is not None and "model_type" in parse_config(content, folder / CONFIG):
            files[CONFIG] = content
            break
    else:
        raise refused(base_dir, "has no config.json of a model, nor has the checkpoint", next_move="give the base model's folder")
    _take(files, folders, base_dir, (GENERATION_CONFIG,), (GENERATION_CONFIG,))
    _take(files, folders, base_dir, TOKENIZER_FILES[:2], TOKENIZER_FILES)
    _take(files, folders, base_dir, PROCESSOR_FILES[:2], PROCESSOR_FILES)
    return files


def _take(files: dict[str, bytes], folders: Sequence[Path], base_dir: Path, signs: Iterable[str], names: Iterable[str]) -> None:
    """Add the files `names` of the first folder that has one of `signs`."""
    for folder in folders:
        if any((folder / sign).is_file() for sign in signs):
            for name in names:
                content = _read(folder, name, trusted=folder is base_dir)
                if content is not None:
                    files[name] = content
            return


def _read(folder: Path, name: str, *, trusted: bool) -> bytes | None:
    path = folder / name
    if not path.is_file():
        return None
    if not trusted and not path.resolve().is_relative_to(folder.resolve()):  # a base from a hub cache is made of links
        raise refused(path, "is a link that leads out of the checkpoint")
    if path.stat().st_size > _MAX_FILE:
        raise refused(path, f"has {path.stat().st_size} bytes, at most {_MAX_FILE} expected")
    return path.read_bytes()


def parse_config(content: bytes, path: Path) -> dict[str, Any]:
    """config.json as a dict; CheckpointError if it is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise refused(path, f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise refused(path, "is no JSON object")
    return value


def ties_embeddings(config: dict[str, Any]) -> bool:
    """Whether `config` says in so many words that the head shares the embedding's weights."""
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return bool(config.get("tie_word_embeddings", inner))


def tied_pair(tensors: Iterable[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The (head, embedding) that a model may tie, None if the checkpoint has not both, or several embeddings."""
    by_name = {tensor.name: tensor for tensor in tensors}
    embeddings = [tensor for name, tensor in by_name.items() if name == _EMBEDDING or name.endswith("." + _EMBEDDING)]
    if HEAD not in by_name or len(embeddings) != 1:
        return None
    return by_name[HEAD], embeddings[0]


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


def check_against_base(tensors: Sequence[Tensor], base_dir: Path, where: Path) -> None:
    """Compare names and shapes with the base model's own safetensors; the head may be on one side only.

    A base without safetensors says nothing. A checkpoint that names its tensors in another way than the base is taken as it is, and the
    log says so.

    Raises:
        CheckpointError: Tensors are missing, extra or of another shape.
    """
    base = {name: entry.shape for name, (_, entry) in read_folder(base_dir).items()}
    ours = {tensor.name: tensor.shape for tensor in tensors}
    if not base:
        return
    common = base.keys() & ours.keys()
    if len(common) < _SAME_NAMING * min(len(base), len(ours)):
        _log.warning("%s names its tensors in another way than %s; they are taken as they are", where, base_dir)
        return
    faults = [f"{name} is missing" for name in sorted(base.keys() - ours.keys() - {HEAD})]
    faults += [f"{name} is not in the base" for name in sorted(ours.keys() - base.keys() - {HEAD})]
    faults += [f"{name} is {list(ours[name])}, in the base {list(base[name])}" for name in sorted(common) if ours[name] != base[name]]
    if faults:
        more = f"; and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise refused(
            where,
            f"does not hold the tensors of the base model in {base_dir}",
            found="; ".join(faults[:10]) + more,
            next_move="give the base model that this training started from",
        )
