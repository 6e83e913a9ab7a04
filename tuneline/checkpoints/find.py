"""Opens what a person names and finds the checkpoint in it: one step, or the newest whole one of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuneline.checkpoints.blobs import Folder
from tuneline.checkpoints.cover import check_cover
from tuneline.checkpoints.dcp import read_dcp
from tuneline.checkpoints.folders import read_hf, read_sharded
from tuneline.checkpoints.fsdp import read_fsdp
from tuneline.checkpoints.layout import ADAPTER, DCP, FSDP, HF, SHARDED, Layout, detect, split_source, steps
from tuneline.checkpoints.lora import ADAPTER_WEIGHTS
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.safetensors import read_header
from tuneline.checkpoints.tensors import Chunk, Tensor
from tuneline.checkpoints.tree import Tree, at, join
from tuneline.core.errors import CheckpointError
from tuneline.core.log import get_logger

_log = get_logger("checkpoints")


@dataclass(frozen=True)
class Found:
    """A checkpoint whose tensors are proved whole.

    Attributes:
        step: The training step that its folder is named after, None where it is named otherwise.
    """

    layout: Layout
    tensors: list[Tensor]
    step: int | None = None


def open_tree(where: str | Path, *, trusted: bool = False) -> Tree:
    """The folder or bucket prefix at `where`. CheckpointError if there is nothing.

    Args:
        trusted: Links may lead out of it.
    """
    if str(where).startswith("gs://"):
        from tuneline.checkpoints.bucket import BucketTree

        return BucketTree(str(where))
    path = Path(where)
    if not path.is_dir():
        raise refused(path, "is no folder", next_move="give the folder of one step, for example …/step_100, or of a run")
    return Folder(path, trusted=trusted)


def open_source(source: str | Path) -> tuple[Tree, str]:
    """(the folder of the whole step or run, what of it `source` names)."""
    text = str(source) if str(source).startswith("gs://") else str(Path(source).absolute())
    root, under = split_source(text)
    if not under:
        return open_tree(text), ""
    tree = open_tree(root)
    folder, _, name = under.rpartition("/")
    if name not in tree.folders(folder):
        tree.close()
        raise refused(text, "is no folder", next_move="give the folder of one step, for example …/step_100, or of a run")
    return tree, under


def find(tree: Tree, under: str, step: int | None = None) -> Found:
    """The checkpoint at or below `under`: of training step `step`, or the newest that is whole where several steps lie there.

    Raises:
        CheckpointError: There is no such step, or no whole checkpoint.
    """
    known = steps(tree, under)
    if not known:
        if step is not None and _own_step(tree, under) != step:
            raise refused(at(tree, under), f"holds no step {step}", choices=[])
        return _read(tree, under, _own_step(tree, under))
    if step is not None:
        if step not in known:
            raise refused(at(tree, under), f"holds no step {step}", choices=[str(number) for number in known])
        return _read(tree, join(under, known[step]), step)
    faults: list[CheckpointError] = []
    for number, name in known.items():
        try:
            found = _read(tree, join(under, name), number)
        except CheckpointError as error:
            faults.append(error)
            _log.warning("step %d cannot be converted: %s", number, error.message)
        else:
            if faults:
                _log.warning("step %d is taken, the newest that is whole", number)
            return found
    raise faults[0]


def _own_step(tree: Tree, under: str) -> int | None:
    for name in reversed(at(tree, under).split("/")):
        digits = name.removeprefix("global_").removeprefix("step_")
        if name.endswith(f"step_{digits}") and digits.isdecimal():
            return int(digits)
    return None


def _read(tree: Tree, under: str, step: int | None) -> Found:
    layout = detect(tree, under)
    tensors = _READERS[layout.kind](tree, layout.under)
    for tensor in tensors:
        check_cover(tensor)
    return Found(layout, tensors, step)


def _read_adapter(tree: Tree, under: str) -> list[Tensor]:
    blob = tree.open(join(under, ADAPTER_WEIGHTS))
    return [
        Tensor(name, entry.dtype, entry.shape, (Chunk((0,) * len(entry.shape), entry.shape, blob, entry.start),), f"{blob.name}: {name!a}")
        for name, entry in sorted(read_header(blob)[0].items())
    ]


_READERS: dict[str, Callable[[Tree, str], list[Tensor]]] = {
    DCP: read_dcp,
    SHARDED: read_sharded,
    FSDP: read_fsdp,
    HF: read_hf,
    ADAPTER: _read_adapter,
}
