"""The `tuneline` command. Each command's module is imported only when it is called."""

from __future__ import annotations

import importlib
import io
import sys

import click

from tuneline import __version__
from tuneline.core.errors import SpecError, TunelineError

#: Command -> module of tuneline.cli whose `command` it is, in the order of --help.
COMMANDS = {"run": "run", "params": "params", "convert": "convert", "check-weights": "check_weights", "audit": "audit"}


class Lazy(click.Group):
    """A group whose commands are imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(f"tuneline.cli.{module}").command
        return command


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tuneline")
def group() -> None:
    """GRPO post-training as compiled Kubeflow pipelines, with lineage that verifies."""


def main() -> None:
    """Exit codes: 0 done, 1 failed, 2 refused before anything started, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # signs that a terminal's encoding lacks are no reason to end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(group.main(standalone_mode=False))
    except SpecError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except TunelineError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()
