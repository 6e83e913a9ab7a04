"""`tuneline check-weights`: is a converted model whole, finite, and what training made of its base?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command("check-weights")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--base", help="The base model: training must have changed something, and kept names and shapes. Folder or gs://.")
@click.option("--other", help="Another Hugging Face model, compared tensor by tensor. Folder or gs://.")
@click.option("--no-digests", is_flag=True, help="Do not read all files for their sha256.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, each tensor with it.")
def command(folder: Path, base: str | None, other: str | None, no_digests: bool, as_json: bool) -> None:
    """Check the Hugging Face model in FOLDER: digests, index, shapes, dtypes, NaN and infinities.

    Exit code: 0 sound, 1 faults, each on a line.
    """
    from tuneline.checkpoints.check_weights import check_weights

    result = check_weights(folder, base=base, other=other, digests=not no_digests)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        click.echo(f"{folder}: {len(result.tensors)} tensors{', content digest ' + result.digest if result.digest else ''}")
        for note in result.notes:
            click.echo(f"  {note}")
        for fault in result.faults:
            click.echo(f"  FAULT {fault}")
        click.echo(f"{len(result.faults)} faults" if result.faults else "sound")
    sys.exit(1 if result.faults else 0)
