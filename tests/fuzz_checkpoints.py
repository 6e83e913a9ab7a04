"""Converts mutated checkpoints: `python tests/fuzz_checkpoints.py CHECKPOINTS COUNT [SEED]`, CHECKPOINTS as make_checkpoints.py makes them.

Of each it must hold: no code of the file runs (an audit hook watches for processes, sockets, and files opened or removed outside), it ends
within seconds, memory stays below a limit that the operating system enforces, a refusal names file and reason, and what is converted
all the same has the weights of the undamaged checkpoint and passes check-weights.
"""

from __future__ import annotations

import json
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tuneline.checkpoints.check_weights import check_weights
from tuneline.checkpoints.convert import convert
from tuneline.core.errors import TunelineError

#: (checkpoint, base) below CHECKPOINTS.
SOURCES = (
    ("v1/step_3", "base"),
    ("v2/step_3", "base"),
    ("trl/step_7", "base-tied"),
    ("sharded/step_2", "base-sharded"),
    ("verl/fsdp2/global_step_1", "base-bare"),
    ("verl/hsdp/global_step_1", "base-bare"),
    ("verl/tp/global_step_1", "base-bare"),
    ("verl/fsdp1/global_step_1", "base-bare"),
    ("verl/plain/global_step_1", "base-bare"),
    ("verl/lora/global_step_1", "base-bare"),
)
#: safetensors has no checksum: a flipped weight in it cannot be told from a trained one by anybody.
WITHOUT_SUMS = ("sharded/step_2",)
SECONDS = 20
MEMORY_BYTES = 512 << 20
#: What a conversion must never do; `import` would be how a pickle reaches code.
FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "socket.connect",
    "pickle.find_class",
    "exec",
    "compile",
)

Mutation = Callable[[random.Random, Path], None]


class Ran(BaseException):
    """Something ran that must not."""


def _pick(chooser: random.Random, folder: Path) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    weights = [path for path in files if path.suffix not in (".json",)]
    return chooser.choice(weights if weights and chooser.random() < 0.9 else files)


def _bytes(chooser: random.Random, folder: Path) -> None:
    """Flip, overwrite, cut, remove, insert or move bytes anywhere in a file."""
    path = _pick(chooser, folder)
    data = bytearray(path.read_bytes())
    for _ in range(chooser.choice((1, 1, 1, 2, 5))):
        at, other = chooser.randrange(len(data)), chooser.randrange(len(data))
        match chooser.randrange(7):
            case 0 | 1:
                data[at] ^= 1 << chooser.randrange(8)
            case 2:
                data[at] = chooser.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 3:
                del data[at + 1 :]
            case 4:
                del data[at + 1 : at + chooser.randrange(2, 9)]
            case 5:
                data[at:at] = data[other : other + chooser.randrange(1, 9)]
            case 6:
                size = chooser.randrange(1, 64)
                data[at : at + size] = data[other : other + size]
    path.write_bytes(data)


def _directory(chooser: random.Random, folder: Path) -> None:
    """Change a number in a zip's local or central header or its end records."""
    path = _pick(chooser, folder)
    data = bytearray(path.read_bytes())
    places = [at for sign in (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\x08") for at in _finds(data, sign)]
    if not places:
        return _bytes(chooser, folder)
    at = chooser.choice(places) + chooser.randrange(4, 50)
    value = chooser.choice((0, 1, 8, 0xFFFF, 0xFFFFFFFF, chooser.randrange(1 << 32), len(data)))
    form = chooser.choice(("<H", "<I", "<Q"))
    size = struct.calcsize(form)
    data[at : at + size] = struct.pack(form, value % (1 << (8 * size)))
    path.write_bytes(data)
    return None


def _finds(data: bytearray, sign: bytes) -> list[int]:
    found, at = [], data.find(sign)
    while at >= 0:
        found.append(at)
        at = data.find(sign, at + 1)
    return found


def _numbers(chooser: random.Random, folder: Path) -> None:
    """Change an integer inside a pickle or a safetensors header: offsets, extents, lengths."""
    path = _pick(chooser, folder)
    data = bytearray(path.read_bytes())
    end = len(data) if path.name == ".metadata" else min(len(data), 6000)
    for _ in range(50):
        at = chooser.randrange(end)
        if data[at] in b"KMJ":  # BININT1, BININT2, BININT
            size = {ord("K"): 1, ord("M"): 2, ord("J"): 4}[data[at]]
            data[at + 1 : at + 1 + size] = chooser.randbytes(size)
            break
        if chr(data[at]).isdecimal():
            data[at] = ord(chooser.choice("0123456789"))
            break
    path.write_bytes(data)


def _files(chooser: random.Random, folder: Path) -> None:
    """Remove, empty, link away or replace a file by a folder."""
    path = _pick(chooser, folder)
    content = path.read_bytes()
    path.unlink()
    match chooser.randrange(5):
        case 0 | 1:
            path.write_bytes(content[: chooser.randrange(len(content))])
        case 2:
            path.symlink_to(chooser.choice(("/etc/passwd", "..", path.name, "/dev/zero", "/dev/stdin")))
        case 3:
            path.mkdir()


def _exchange(chooser: random.Random, folder: Path) -> None:
    """Swap two files, or put one in place of another."""
    path, other = _pick(chooser, folder), _pick(chooser, folder)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    if chooser.random() < 0.5:
        other.write_bytes(content)


class _Hostile:
    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call  # type: ignore[return-value]


def _hostile(chooser: random.Random, folder: Path) -> None:
    """A pickle that would run something, alone or inside what was there, or that would grow without bound."""
    path = _pick(chooser, folder)
    import os
    import subprocess

    value = chooser.choice(
        (
            _Hostile(os.system, "touch /tmp/tuneline-fuzz-ran"),
            _Hostile(subprocess.Popen, ["true"]),
            _Hostile(exec, "import os"),
            _Hostile(bytearray, 1 << 40),
            _Hostile(eval, "1"),
        )
    )
    hostile = pickle.dumps(value, protocol=chooser.choice((2, 4)))
    match chooser.randrange(4):
        case 0:
            path.write_bytes(hostile)
        case 1:
            data = path.read_bytes()
            at = chooser.randrange(len(data))
            path.write_bytes(data[:at] + hostile + data[at:])
        case 2:
            data = path.read_bytes()
            old = chooser.choice((b"torch._utils\n_rebuild_tensor_v2\n", b"collections\nOrderedDict\n", b"torch\nSize\n"))
            new = b"posix\nsystem\n".ljust(len(old) - 1, b" ")[: len(old) - 1] + b"\n"
            path.write_bytes(data.replace(old, new))
        case 3:  # tuples nested to exhaust whoever hashes or compares them
            path.write_bytes(b"\x80\x02)" + b"\x85" * 2000 + b"2\x86" * 500 + b".")


def _metadata(chooser: random.Random, folder: Path) -> None:
    """Change DCP metadata by torch's own classes: overlapping, moved, missing and doubled chunks."""
    path = next(folder.rglob(".metadata"), None)
    if path is None:
        return _numbers(chooser, folder)
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    metadata = pickle.loads(path.read_bytes())
    entry = chooser.choice([value for value in metadata.state_dict_metadata.values() if hasattr(value, "chunks")])
    index = chooser.choice(list(metadata.storage_data))
    info = metadata.storage_data[index]
    match chooser.randrange(8):
        case 0:
            info.offset += chooser.choice((-1, 1, 64, -64, 1 << 40))
        case 1:
            info.length += chooser.choice((-1, 1, -64, 1 << 40))
        case 2:
            info.relative_path = chooser.choice(("../x", "/etc/passwd", "", ".", "__9_0.distcp", ".metadata", "a" * 5000))
        case 3 if entry.chunks:
            entry.chunks.append(chooser.choice(entry.chunks))
        case 4 if entry.chunks:
            entry.chunks.pop(chooser.randrange(len(entry.chunks)))
        case 5 if entry.chunks and entry.size:
            chunk = entry.chunks[chooser.randrange(len(entry.chunks))]
            moved = torch.Size([max(0, offset + chooser.choice((-1, 1))) for offset in chunk.offsets])
            entry.chunks[entry.chunks.index(chunk)] = ChunkStorageMetadata(moved, chunk.sizes)
        case 6:
            entry.size = torch.Size([extent + chooser.choice((-1, 0, 1, 1 << 33)) for extent in entry.size])
        case _:
            del metadata.storage_data[index]
    path.write_bytes(pickle.dumps(metadata))
    return None


def _places(chooser: random.Random, folder: Path) -> None:
    """Swap the places of two chunks in DCP metadata."""
    path = next(folder.rglob(".metadata"), None)
    if path is None:
        return _exchange(chooser, folder)
    metadata = pickle.loads(path.read_bytes())
    index, other = chooser.choice(list(metadata.storage_data)), chooser.choice(list(metadata.storage_data))
    places = metadata.storage_data
    places[index], places[other] = places[other], places[index]
    path.write_bytes(pickle.dumps(metadata))
    return None


MUTATIONS: tuple[Mutation, ...] = (
    _bytes,
    _bytes,
    _bytes,
    _directory,
    _directory,
    _numbers,
    _numbers,
    _files,
    _hostile,
    _metadata,
    _exchange,
    _places,
)
#: Where parts of the same shape change places, every part is whole and the file says nothing of whose it is: the result is another valid
#: checkpoint, for torch too. Only digests of the whole (lineage.json) can tell.
UNTELLABLE = (_exchange, _places)


class Fuzzer:
    """Mutates and converts in a scratch folder; `counts` says what came of it."""

    def __init__(self, checkpoints: Path, scratch: Path, seed: int) -> None:
        self.chooser = random.Random(seed)
        self.checkpoints, self.scratch = checkpoints, scratch
        self.counts: Counter[str] = Counter()
        self.right = {
            source: self._convert(checkpoints / source, base, scratch / "right" / str(n)) for n, (source, base) in enumerate(SOURCES)
        }

    def _convert(self, source: Path, base: str, out: Path) -> dict[str, str]:
        """sha256 of each file of weights."""
        done = convert(source, out, base_dir=self.checkpoints / base, max_shard_bytes=1 << 40, threads=2)
        return {file.path: file.sha256 for file in done.files if file.path.endswith(".safetensors")}

    def once(self) -> None:
        """One mutated checkpoint. AssertionError if it does what it must not."""
        source, base = self.chooser.choice(SOURCES)
        mutation = self.chooser.choice(MUTATIONS)
        seed = self.chooser.randrange(1 << 60)
        copy, out = self.scratch / "copy", self.scratch / "out"
        for folder in (copy, out):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.checkpoints / source, copy)
        mutation(random.Random(seed), copy)
        what = f"{source}, {mutation.__name__}, seed {seed}"
        signal.alarm(SECONDS)
        try:
            watched.append(what)
            weights = self._convert(copy, base, out)
        except TunelineError as error:
            watched.clear()
            self.counts[f"refused {mutation.__name__}"] += 1
            text = str(error)
            assert str(self.scratch) in text or str(self.checkpoints) in text, f"{what}: a refusal names no file: {text}"
            assert not out.exists() or not list(out.iterdir()), f"{what}: something was left"
            return
        finally:
            watched.clear()
            signal.alarm(0)
        self.counts[f"converted {mutation.__name__}"] += 1
        (folder,) = out.iterdir()
        if weights != self.right[source] and source not in WITHOUT_SUMS and mutation not in UNTELLABLE:
            faults = check_weights(folder).faults
            assert faults, f"{what}: other weights came out, and check-weights finds nothing"


watched: list[str] = []


def _watch(event: str, args: tuple[object, ...]) -> None:
    if watched and event in FORBIDDEN:
        if event in ("exec", "compile") and "importlib" in repr(sys._getframe(1).f_code.co_filename):
            return  # Python importing a module of ours or its own
        raise Ran(f"{watched[0]}: {event} {args!r:.200}")


def _stuck(number: int, frame: object) -> None:
    raise Ran(f"{watched[:1]}: not done after {SECONDS} s")


def run(checkpoints: Path, count: int, seed: int = 0, *, limit_memory: bool = True) -> Counter[str]:
    """Fuzz `count` times. AssertionError, Ran or MemoryError at the first that does what it must not."""
    import torch.distributed.checkpoint  # noqa: F401  what mutations need, before memory is limited

    sys.addaudithook(_watch)
    signal.signal(signal.SIGALRM, _stuck)
    with tempfile.TemporaryDirectory() as scratch:
        fuzzer = Fuzzer(checkpoints, Path(scratch), seed)
        if limit_memory:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for number in range(count):
            fuzzer.once()
            if number % 1000 == 999:
                print(number + 1, json.dumps(dict(sorted(fuzzer.counts.items()))), flush=True)
    assert not Path("/tmp/tuneline-fuzz-ran").exists()
    return fuzzer.counts


if __name__ == "__main__":
    import logging

    logging.getLogger("tuneline").setLevel(logging.ERROR)
    print(json.dumps(dict(sorted(run(Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0])).items())), indent=1))
