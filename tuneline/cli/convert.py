"""`tuneline convert`: a training checkpoint to a Hugging Face model."""

from __future__ import annotations

import re

import click

from tuneline.core import log
from tuneline.core.clock import SYSTEM

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class Size(click.ParamType[int]):
    """A number of bytes: 5GB, 500MB, 2GiB, 1000000."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?|)B?", str(value).strip().upper())
        if match is None:
            self.fail(f"{value!r} is no size; write it as 5GB or 500MB", param, ctx)
        return int(float(match[1]) * _UNITS[match[2]])


@click.command("convert")
@click.argument("source")
@click.argument("out")
@click.option("--base", "base", required=True, help="The base model: names, shapes, and files that the checkpoint lacks. Folder or gs://.")
@click.option("--step", type=int, help="Training step, where SOURCE holds several; default: the newest that is whole.")
@click.option("--dtype", type=click.Choice(("keep", "bf16", "fp16", "like-base")), default="keep", show_default=True)
@click.option(
    "--fp32", multiple=True, metavar="RULE", help="Stays float32 all the same: norms, router, or a regular expression. Repeatable."
)
@click.option("--shard-size", type=Size(), default="5GB", show_default=True, help="Largest file of weights.")
@click.option("--merge-lora", is_flag=True, help="Add LoRA weights to the model's; else a PEFT adapter folder is written.")
@click.option("--lora-alpha", type=float, help="Where the checkpoint does not tell.")
@click.option("--threads", type=click.IntRange(1, 256), help="Default: 8 to 12, by the machine's cores.")
@click.option("--no-lineage", is_flag=True, help="Write no lineage.json beside the files.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: str,
    out: str,
    base: str,
    step: int | None,
    dtype: str,
    fp32: tuple[str, ...],
    shard_size: int,
    merge_lora: bool,
    lora_alpha: float | None,
    threads: int | None,
    no_lineage: bool,
    as_json: bool,
) -> None:
    """Convert the checkpoint in SOURCE to OUT/<content digest>.

    SOURCE is a step's folder or a run's: NeMo RL (DCP v1 and v2, sharded safetensors), verl (FSDP), the trl engine, a Hugging Face model
    or a PEFT adapter; on a disk or gs://. Nothing in it is executed. OUT is a folder or gs://bucket/prefix.
    A conversion that was interrupted goes on from its finished files when it is run again.
    """
    import json
    from pathlib import Path

    from tuneline.checkpoints.convert import THREADS, convert
    from tuneline.core.clock import utc
    from tuneline.lineage import sidecar
    from tuneline.lineage.digests import FileDigest

    if not as_json:
        log.configure()
    began, started = SYSTEM.monotonic(), utc(SYSTEM.now())

    def finish(folder: Path, files: tuple[FileDigest, ...]) -> None:
        statement = sidecar.build_statement(
            kind="hf",
            uri=out,
            files=files,
            dependencies=[sidecar.Dependency("base", "base", base), sidecar.Dependency("checkpoint", "checkpoint", source)],
            parameters={"source": source, "base": base, "dtype": dtype, "fp32": ",".join(fp32), "shard_bytes": str(shard_size)},
            run_id="",
            task="convert",
            attempt=1,
            started=started,
            finished=utc(SYSTEM.now()),
            details={},
        )
        sidecar.write(folder, statement)

    made = convert(
        source,
        out,
        base_dir=base,
        max_shard_bytes=shard_size,
        dtype=dtype,
        fp32=fp32,
        merge_lora=merge_lora,
        lora_alpha=lora_alpha,
        step=step,
        threads=threads or THREADS,
        finish=None if no_lineage else finish,
    )
    seconds = SYSTEM.monotonic() - began
    result = {
        "uri": made.uri,
        "digest": made.digest,
        "kind": made.kind,
        "step": made.step,
        "parameters": made.parameters,
        "bytes": made.bytes,
        "seconds": round(seconds, 2),
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"{made.uri}\n{made.parameters:,} parameters, {made.bytes / 1e9:.2f} GB in {seconds:.1f} s ({made.kind}, step {made.step})")
