"""`tuneline audit`: where a checkpoint came from and whether its bytes are what they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tuneline.config.store import Store
from tuneline.core.errors import LineageError
from tuneline.core.files import write_atomic
from tuneline.lineage.audit import audit
from tuneline.lineage.report import render_html, render_text
from tuneline.lineage.sqlite import SqliteStore


@click.command("audit")
@click.argument("target")
@click.option("--store", "root", default="", help="Folder that holds lineage/lineage.sqlite; default: found by going up from TARGET.")
@click.option(
    "--quick", is_flag=True, help="Compare names, sizes and recorded crc32c only; files that have no crc32c leave the audit incomplete."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to this file.")
def command(target: str, root: str, quick: bool, as_json: bool, html: Path | None) -> None:
    """Audit TARGET and everything that it was made from.

    TARGET is a folder, a uri, NAME@VERSION of a registered model, or sha256:<content digest>. Without a lineage store the sidecars
    alone are audited, which cannot be more than incomplete.

    Exit code: 0 verified, 1 mismatch, 2 incomplete (a mismatch wins).
    """
    try:
        path = Path(Store(str(Path(root).absolute())).lineage_db()) if root else find_store(target)
        store = SqliteStore(path, read_only=True) if path else None
        result = audit(target, store=store, full=not quick)
        if html:
            write_atomic(html, render_html(result).encode())
    except LineageError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"the report cannot be written: {error}", err=True)
        sys.exit(2)
    click.echo(json.dumps(result.to_dict(), indent=2) if as_json else render_text(result), nl=as_json)
    if html:
        click.echo(f"report: {html}", err=as_json)
    sys.exit(result.exit_code)


def find_store(target: str) -> Path | None:
    """The lineage store of the folder that TARGET lies in: going up from it, or from the working folder where TARGET is no path."""
    start = Path(target).resolve() if Path(target).exists() else Path.cwd()
    return next((path for folder in (start, *start.parents) if (path := Path(Store(str(folder)).lineage_db())).is_file()), None)
