"""`tuneline params`: every parameter with its type, range, default and meaning."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuneline.config.spec import RunSpec, describe


@click.command("params")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> type, default, meaning.")
def command(as_json: bool) -> None:
    """List every parameter of a run."""
    rows = {
        name: {"type": describe(name), "default": field.default, "meaning": field.description or ""}
        for name, field in RunSpec.model_fields.items()
    }
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("parameter", "default", "meaning", "type", box=None)
    for name, row in rows.items():
        # As text: in a string rich takes [...] for its own.
        table.add_row(*map(Text, (name, repr(row["default"]), str(row["meaning"]), str(row["type"]))))
    Console().print(table)
