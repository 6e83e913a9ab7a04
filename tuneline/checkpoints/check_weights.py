"""Checks a converted model: digests, index, shapes, dtypes, NaN and infinities, and what training changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.blocks import Block, Blocks
from tuneline.checkpoints.casts import cast
from tuneline.checkpoints.disk import Bytes, Room
from tuneline.checkpoints.find import open_tree
from tuneline.checkpoints.folders import read_hf
from tuneline.checkpoints.huggingface import CONFIG, HEADS, check_shapes, ties_embeddings
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import INDEX
from tuneline.checkpoints.tensors import F32, DType, Tensor
from tuneline.checkpoints.tree import Tree, read_json
from tuneline.core.errors import CheckpointError, LineageError
from tuneline.lineage import sidecar
from tuneline.lineage.digests import SIDECAR, content_digest, digest_folder


@dataclass(frozen=True)
class TensorCheck:
    """What was counted in one tensor.

    Attributes:
        nan, infinite: Elements.
        equal: Whether its bytes are those of the base (as the base's dtype), None where the base has no such tensor.
        largest: The largest absolute difference from the other checkpoint, None where it was not compared.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    equal: bool | None = None
    largest: float | None = None


@dataclass
class WeightsCheck:
    """The result: all is well if there are no faults.

    Attributes:
        digest: Content digest of the folder, '' where it was not asked for.
    """

    folder: str
    digest: str = ""
    tensors: list[TensorCheck] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "folder": self.folder,
            "digest": self.digest,
            "faults": self.faults,
            "notes": self.notes,
            "tensors": [vars_of(tensor) for tensor in self.tensors],
        }


def vars_of(tensor: TensorCheck) -> dict[str, Any]:
    """A tensor's counts, without what was not compared."""
    values = {name: getattr(tensor, name) for name in TensorCheck.__dataclass_fields__}
    return {name: value for name, value in values.items() if value is not None}


def check_weights(
    folder: Path, *, base: Path | str | None = None, other: Path | str | None = None, digests: bool = True, threads: int = 4
) -> WeightsCheck:
    """Check the Hugging Face model in `folder`; faults are collected, not raised.

    Args:
        base: The base model: training must have changed something, and left names and shapes.
        other: Another checkpoint, compared tensor by tensor.
        digests: Compare the files' sha256 with lineage.json.

    Raises:
        CheckpointError: The folder, the base or the other checkpoint cannot be read at all.
    """
    if not folder.is_dir():
        raise refused(folder, "is no folder")
    result = WeightsCheck(str(folder))
    if digests:
        _check_digests(folder, result)
    with Folder(folder) as tree:
        try:
            tensors = read_hf(tree)
        except CheckpointError as error:
            result.faults.append(error.message)
            return result
        if not tensors:
            raise refused(folder, "holds no safetensors", next_move="give a converted model; `tuneline convert` makes one")
        _check_config(tree, tensors, result)
        trees = [open_tree(place, trusted=True) if place is not None else None for place in (base, other)]
        try:
            before, beside = ({tensor.name: tensor for tensor in read_hf(place)} if place is not None else None for place in trees)

            def check(tensor: Tensor) -> TensorCheck:
                return _check_tensor(tensor, (before or {}).get(tensor.name), (beside or {}).get(tensor.name))

            with ThreadPoolExecutor(threads) as pool:
                result.tensors = list(pool.map(check, tensors))
        finally:
            for place in trees:
                if place is not None:
                    place.close()
    result.faults += [f"{t.name} has {t.nan} NaN and {t.infinite} infinite elements" for t in result.tensors if t.nan or t.infinite]
    if before is not None:
        _compare_with_base(tensors, before, result)
    if beside is not None:
        _compare_with_other(tensors, beside, result)
    return result


def _check_digests(folder: Path, result: WeightsCheck) -> None:
    try:
        files = digest_folder(folder)
        result.digest = content_digest(files)
        if not (folder / SIDECAR).exists():
            result.notes.append(f"there is no {SIDECAR}: digests were made, and compared with nothing")
            if len(folder.name) == 64 and folder.name != result.digest:
                result.faults.append(f"the folder's name is not its content digest, {result.digest}")
            return
        recorded = {subject.path: subject.sha256 for subject in sidecar.read(folder).subjects}
    except LineageError as error:
        result.faults.append(error.message)
        return
    found = {file.path: file.sha256 for file in files}
    result.faults += [
        f"{path} has other bytes than {SIDECAR} says" for path in sorted(found) if recorded.get(path, found[path]) != found[path]
    ]
    result.faults += [f"{path} is missing" for path in sorted(recorded.keys() - found.keys())]
    result.faults += [f"{path} is not in {SIDECAR}" for path in sorted(found.keys() - recorded.keys())]


def _check_config(tree: Tree, tensors: list[Tensor], result: WeightsCheck) -> None:
    files = tree.files("")
    if CONFIG not in files:
        result.faults.append(f"there is no {CONFIG}")
        return
    loose = [name for name in files if name.endswith(".safetensors")]
    if INDEX in files:
        indexed = set(read_json(tree, INDEX)["weight_map"].values())
        result.faults += [f"{name} is not in {INDEX}: a loader would read it all the same" for name in loose if name not in indexed]
        total = read_json(tree, INDEX).get("metadata", {}).get("total_size")
        if total != sum(tensor.nbytes for tensor in tensors):
            result.faults.append(f"{INDEX} says {total} bytes, the tensors have {sum(tensor.nbytes for tensor in tensors)}")
    elif len(loose) > 1:
        result.faults.append(f"there are {len(loose)} files of safetensors and no {INDEX}")
    try:
        config = read_json(tree, CONFIG)
        check_shapes(tensors, config, str(CONFIG))
    except CheckpointError as error:
        result.faults.append(f"{error.message}: {error.found}" if error.found else error.message)
        return
    names = {tensor.name for tensor in tensors}
    if ties_embeddings(config) and names & set(HEADS):
        result.faults.append("the config ties the embeddings, and the head is there too: loaders take one or the other")
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else {}
    told = next((value for part in (config, text) for key in ("dtype", "torch_dtype") if isinstance(value := part.get(key), str)), None)
    held = {tensor.dtype.name for tensor in tensors if tensor.dtype.castable}
    if told is not None and held and told not in held:
        result.faults.append(f"the config says {told}, the tensors are {', '.join(sorted(held))}: a loader would cast them")


def _check_tensor(tensor: Tensor, before: Tensor | None, beside: Tensor | None) -> TensorCheck:
    nan = infinite = 0
    equal = True if before is not None and before.shape == tensor.shape else None
    largest = 0.0 if beside is not None and beside.shape == tensor.shape else None
    blocks, rooms = Blocks(tensor), (Room(), Room(), Room())
    for block in blocks:
        data = _bytes(tensor, block, rooms[0])
        counts = count_not_finite(data, tensor.dtype)
        nan, infinite = nan + counts[0], infinite + counts[1]
        if before is not None and equal:
            equal = bool(np.array_equal(_as(data, tensor.dtype, before.dtype), _bytes(before, block, rooms[1])))
        if beside is not None and largest is not None:
            largest = max(largest, _difference(data, tensor.dtype, _bytes(beside, block, rooms[2]), beside.dtype))
    return TensorCheck(tensor.name, tensor.dtype.name, tensor.shape, nan, infinite, equal, largest)


def _bytes(tensor: Tensor, block: Block, room: Room) -> Bytes:
    """The elements of `block` in a tensor of a Hugging Face folder, which is one chunk."""
    (chunk,) = tensor.chunks
    return chunk.blob.fetch(chunk.start + block.start * tensor.dtype.size, block.numel * tensor.dtype.size, room)


def _as(data: Bytes, source: DType, target: DType) -> Bytes:
    return cast(data, source, target) if source.castable and target.castable else data


def _difference(ours: Bytes, our_dtype: DType, theirs: Bytes, their_dtype: DType) -> float:
    """The largest absolute difference; infinite where two elements cannot be compared."""
    if our_dtype == their_dtype and np.array_equal(ours, theirs):
        return 0.0
    if not our_dtype.castable or not their_dtype.castable:
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.abs(cast(ours, our_dtype, F32).view(np.float32) - cast(theirs, their_dtype, F32).view(np.float32))
    return float("inf") if np.isnan(apart).any() else float(apart.max(initial=0.0))


def count_not_finite(data: Bytes, dtype: DType) -> tuple[int, int]:
    """(NaN, infinite) elements in raw bytes; none in integers."""
    if dtype.castable:
        values = data.view(np.float64) if dtype.name == "float64" else cast(data, dtype, F32).view(np.float32)
        finite = np.isfinite(values)
        if finite.all():
            return 0, 0
        nan = int(np.isnan(values).sum())
        return nan, int(len(values) - finite.sum()) - nan
    magnitude = data & 0x7F
    if dtype.name == "float8_e4m3fn":
        return int((magnitude == 0x7F).sum()), 0
    if dtype.name == "float8_e5m2":
        return int((magnitude > 0x7C).sum()), int((magnitude == 0x7C).sum())
    return 0, 0


def _compare_with_base(tensors: list[Tensor], base: dict[str, Tensor], result: WeightsCheck) -> None:
    names = {tensor.name: tensor.shape for tensor in tensors}
    common = names.keys() & base.keys()
    if not common:
        result.faults.append("no tensor has a name that the base has")
        return
    result.faults += [f"{name} of the base is missing" for name in sorted(base.keys() - names.keys() - set(HEADS))]
    result.faults += [f"{name} is not in the base" for name in sorted(names.keys() - base.keys() - set(HEADS))]
    result.faults += [
        f"{name} is {list(names[name])}, in the base {list(base[name].shape)}" for name in sorted(common) if names[name] != base[name].shape
    ]
    compared = [tensor for tensor in result.tensors if tensor.equal is not None]
    equal = [tensor.name for tensor in compared if tensor.equal]
    result.notes.append(f"{len(equal)} of {len(compared)} tensors are equal to the base's")
    if compared and len(equal) == len(compared):
        result.faults.append("every tensor is equal to the base's: training changed nothing, or this is not what it wrote")


def _compare_with_other(tensors: list[Tensor], other: dict[str, Tensor], result: WeightsCheck) -> None:
    names = {tensor.name for tensor in tensors}
    only = [*sorted(names - other.keys()), *sorted(other.keys() - names)]
    if only:
        result.notes.append(f"{len(only)} tensors are in one of the two only: {', '.join(only[:5])}")
    compared = [tensor for tensor in result.tensors if tensor.largest is not None]
    differ = sorted((tensor for tensor in compared if tensor.largest), key=lambda tensor: -(tensor.largest or 0.0))
    result.notes.append(f"{len(differ)} of {len(compared)} tensors differ from the other checkpoint's")
    result.notes += [f"{tensor.name}: at most {tensor.largest:.6g}" for tensor in differ[:10]]
