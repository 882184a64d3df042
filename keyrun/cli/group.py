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
    "demo": ("keyrun.demo:command", "Watch it at work, and break it"),
    "stress": ("keyrun.stress:command", "Try to break it, and check"),
    "run": ("keyrun.cli.run:command", "Run a workflow, print its result"),
    "flow": ("keyrun.cli.flow:command", "Run and check flows in files"),
    "schema": ("keyrun.cli.schema:command", "Print the JSON Schema of flows"),
    "runs": ("keyrun.cli.runs:command", "List runs, the newest first"),
    "status": ("keyrun.cli.status:command", "Show how a run stands"),
    "history": ("keyrun.cli.history:command", "Tell what happened to a run"),
    "progress": ("keyrun.cli.progress:command", "Show how far a run is"),
    "graph": ("keyrun.cli.graph:command", "Draw a run of a graph"),
    "keys": ("keyrun.cli.keys:command", "List keys with unfinished runs"),
    "dead-letters": ("keyrun.cli.dead_letters:command", "List runs that failed for good"),
    "outbox": ("keyrun.cli.outbox:command", "Count ends that wait for the hook"),
    "schedules": ("keyrun.cli.schedules:command", "List schedules and when they fire"),
    "stats": ("keyrun.cli.stats:command", "Count unfinished runs and patches"),
    "verify": ("keyrun.cli.verify:command", "Look for damaged records"),
    "compact": ("keyrun.cli.compact:command", "Give back unused space"),
}
"""Where each command is, as module:attribute, and what it does: to list them takes no import."""


class LazyGroup(click.Group):
    """A group that knows its commands by name, in the order in which they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, without importing anything."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click has it, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

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
