"""The group of all commands, which are imported when they are needed and not before."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from keyrun import __version__
from keyrun.cli.exits import EXIT_CODES, INTERRUPTED, Refusal

COMMANDS = {
    "demo": "keyrun.demo:command",
    "stress": "keyrun.stress:command",
    "run": "keyrun.cli.run:command",
    "flow": "keyrun.cli.flow:command",
    "schema": "keyrun.cli.schema:command",
    "runs": "keyrun.cli.runs:command",
    "status": "keyrun.cli.status:command",
    "history": "keyrun.cli.history:command",
    "progress": "keyrun.cli.progress:command",
    "graph": "keyrun.cli.graph:command",
    "keys": "keyrun.cli.keys:command",
    "dead-letters": "keyrun.cli.dead_letters:command",
    "schedules": "keyrun.cli.schedules:command",
    "verify": "keyrun.cli.verify:command",
    "compact": "keyrun.cli.compact:command",
}
"""Where each command is, as module:attribute."""


class LazyGroup(click.Group):
    """A group that knows its commands by name, in the order in which they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, without importing anything."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click has it, with exit codes of our own."""
        if sys.stdout is None:
            # Whoever closed it does not want to see anything.
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            code = error.code if isinstance(error, Refusal) else error.exit_code
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"\b\nExit codes:\n{EXIT_CODES}",
)
@click.version_option(__version__, "-V", "--version", message="keyrun %(version)s")
def command() -> None:
    """Run durable workflows, and look at any store of them, also while it is in use.

    \b
    Try it:
      keyrun demo
      keyrun run shop:checkout --key alice --input '{"id": 7}'
      keyrun runs state/ --state failed --since 2h
      keyrun history state/ order-7

    A store is the directory that was given to open_runtime(). Looking at one never writes to it
    and never holds up the process that does. Every command that shows something has --json, which
    prints one JSON object per line, with times in UTC. `keyrun COMMAND --help` has examples.
    """
