"""Measures conversion against its peers, interleaved, so that a noisy machine is noisy for all: `python bench/convert.py`.

Inputs are made by torch (inputs/checkpoints.py). Every tool runs in a process of its own; wall time ends with `sync`, CPU is user and
system time of the process tree, peak memory that of its largest process. Ratios are of medians: each repetition runs every tool once.

cp       cp -r of the checkpoint: the same bytes, no work
torch    torch's own way: dcp_to_torch_save, torch.load, torch.save
verl     verl's own model_merger (PyPI's verl, put in a folder of its own with --verl DIR)
ours-N   tuneline with N threads, SHA-256 on
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERL = (
    "verl==0.9.1 tensordict==0.10.0 hydra-core omegaconf antlr4-python3-runtime==4.9.3 peft codetiming pylatexenc torchdata orjson pyvers"
    " cloudpickle importlib_metadata"
)

OURS = """
import sys
from pathlib import Path
from tuneline.checkpoints.convert import convert
source, out, base, dtype, threads = sys.argv[1:]
convert(Path(source), Path(out), base_dir=Path(base), max_shard_bytes=5 * 10**9, dtype=dtype, threads=int(threads))
"""
TORCH = """
import sys, torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
source, out = sys.argv[1:]
dcp_to_torch_save(source, out + "/whole.pt")
torch.save(torch.load(out + "/whole.pt", weights_only=True, mmap=False), out + "/pytorch_model.bin")
"""


@dataclass
class Result:
    """What one tool took, a value a repetition: seconds, CPU seconds, MiB."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def measure(result: Result, command: list[str], environment: dict[str, str]) -> None:
    """Run `command` and sync; add what it took. Raises RuntimeError if it fails."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        os.sync()
        result.wall.append(time.monotonic() - began)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{command[:3]} failed: {output.read()[-2000:].decode(errors='replace')}")
    result.cpu.append(usage.ru_utime + usage.ru_stime)
    result.memory.append(usage.ru_maxrss / 1024)


def prepare(source: Path, out: Path, cache: str) -> None:
    """An empty `out`, and the source out of the page cache or in it."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.sync()
    for path in source.rglob("*"):
        if path.is_file():
            with open(path, "rb") as handle:
                if cache == "cold":
                    os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while handle.read(1 << 24):
                        pass


def run(tools: dict[str, tuple[list[str], dict[str, str]]], source: Path, out: Path, cache: str, pairs: int) -> dict[str, Result]:
    """Every tool once a repetition, in an order that turns."""
    results = {name: Result() for name in tools}
    for repetition in range(pairs):
        names = list(tools)
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            prepare(source, out, cache)
            command, environment = tools[name]
            measure(results[name], command, environment)
    return results


def table(title: str, results: dict[str, Result], gigabytes: float, against: tuple[str, ...]) -> None:
    """Print medians, ranges and ratios."""
    print(f"\n{title}")
    heads = "".join(f"{'x ' + name:>9}" for name in against)
    print(f"{'tool':<10}{'wall s':>8}{'  [min-max]':<16}{'CPU s':>7}{'CPU s/GB':>10}{'MiB':>7}{heads}")
    for name, result in results.items():
        wall = statistics.median(result.wall)
        span = f"  [{min(result.wall):.1f}-{max(result.wall):.1f}]"
        cpu = statistics.median(result.cpu)
        ratios = "".join(f"{wall / statistics.median(results[other].wall):>9.2f}" for other in against)
        print(f"{name:<10}{wall:>8.2f}{span:<16}{cpu:>7.2f}{cpu / gigabytes:>10.2f}{max(result.memory):>7.0f}{ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-gb", type=float, default=1.0, help="size of each input in 10^9 bytes (default 1)")
    parser.add_argument("--pairs", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("--threads", default="1,2,4,8", help="thread counts of ours (default 1,2,4,8)")
    parser.add_argument("--cache", choices=("cold", "warm", "both"), default="both")
    parser.add_argument("--inputs", choices=("dcp", "verl", "both"), default="both")
    parser.add_argument("--peers", choices=("all", "cp"), default="all", help="cp: only the copy, not the converters")
    parser.add_argument("--verl", default=os.environ.get("TUNELINE_VERL", ""), help="folder with PyPI's verl")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="where inputs are kept and outputs written")
    arguments = parser.parse_args()
    threads = [int(count) for count in arguments.threads.split(",")]
    caches = ("cold", "warm") if arguments.cache == "both" else (arguments.cache,)
    environment = {"PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1"}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.size_gb} GB, {arguments.pairs} repetitions")
    for kind in ("dcp", "verl") if arguments.inputs == "both" else (arguments.inputs,):
        step = arguments.folder.absolute() / f"{kind}-{arguments.size_gb}" / ("step_1" if kind == "dcp" else "global_step_1/actor")
        if not step.exists():
            partial = step.with_name("partial")
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run([sys.executable, str(HERE / "inputs/checkpoints.py"), kind, str(partial), str(arguments.size_gb)], check=True)
            partial.rename(step)
        gigabytes = sum(path.stat().st_size for path in step.rglob("*") if path.is_file()) / 1e9
        out = arguments.folder.absolute() / "out"
        base, dtype = (step / "policy/tokenizer", "keep") if kind == "dcp" else (step / "huggingface", "bf16")
        tools: dict[str, tuple[list[str], dict[str, str]]] = {"cp": (["cp", "-r", str(step), str(out / "copy")], {})}
        for count in threads:
            tools[f"ours-{count}"] = ([sys.executable, "-c", OURS, str(step), str(out), str(base), dtype, str(count)], environment)
        if arguments.peers == "all" and kind == "dcp":
            tools["torch"] = ([sys.executable, "-c", TORCH, str(step / "policy/weights/model"), str(out)], {})
        if arguments.peers == "all" and kind == "verl":
            if arguments.verl:
                merge = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(step)]
                tools["verl"] = ([*merge, "--target_dir", str(out / "verl")], {**environment, "PYTHONPATH": arguments.verl})
            else:
                print(f"verl's merger is left out: no --verl DIR; make one with pip install --no-deps --target DIR {VERL}")
        for cache in caches:
            results = run(tools, step, out, cache, arguments.pairs)
            peers = tuple(name for name in ("cp", "torch", "verl") if name in results)
            table(f"{kind}, {gigabytes:.2f} GB in, {cache}; ratios of wall time (below 1: faster)", results, gigabytes, peers)
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
