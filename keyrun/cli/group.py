"""The group of all commands. A command is imported when it is called."""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from keyrun import __version__
from keyrun.cli.derived import DERIVED
from keyrun.cli.exit_codes import EXIT_CODES, INTERRUPTED, CommandError

OPERATE = "keyrun.cli.operate:command_of"
"""The function that makes the command for an operation of the table."""

COMMANDS = {
    "demo": ("keyrun.demo:command", "Watch orders survive crashes"),
    "stress": ("keyrun.stress:command", "Test Keyrun with faults and kills"),
    "run": ("keyrun.cli.run:command", "Run a workflow and print its result"),
    "flow": ("keyrun.cli.flow:command", "Run and check flows in files"),
    "serve": ("keyrun.cli.serve:command", "Serve an application until it is stopped"),
    "open": ("keyrun.cli.open:command", "Show a store in the browser"),
    "schema": ("keyrun.cli.schema:command", "Print the JSON Schema of flows"),
    "runs": ("keyrun.cli.runs:command", "List runs, the newest first"),
    "status": ("keyrun.cli.status:command", "Show the state of a run"),
    "why": ("keyrun.cli.why:command", "Explain why a run does not move"),
    "history": ("keyrun.cli.history:command", "List the events of a run"),
    "progress": ("keyrun.cli.progress:command", "Show the progress of a run"),
    "graph": ("keyrun.cli.graph:command", "Draw a run of a graph"),
    "keys": ("keyrun.cli.keys:command", "List keys with unfinished runs"),
    "dead-letters": ("keyrun.cli.dead_letters:command", "List runs that failed permanently"),
    "outbox": ("keyrun.cli.outbox:command", "Count outcomes that wait for a hook"),
    "schedules": ("keyrun.cli.schedules:command", "List and change schedules"),
    "stats": ("keyrun.cli.stats:command", "Count runs by state and error"),
    "approvals": ("keyrun.cli.approvals:command", "List gates that wait for a person"),
    "audit": ("keyrun.cli.audit:command", "List who did what from outside"),
    "groups": ("keyrun.cli.groups:command", "List, submit and cancel groups"),
    **{name: (OPERATE, summary) for name, summary in DERIVED.items()},
    "verify": ("keyrun.cli.verify:command", "Check every record for damage"),
    "compact": ("keyrun.cli.compact:command", "Shrink the file of a store"),
}
"""The place of each command, as module:attribute, and its summary. The list needs no import."""


class LazyGroup(click.Group):
    """A group whose commands are imported by name, listed in the order of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. Suggest one if it names none."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            similar = get_close_matches(args[0], COMMANDS, n=2)
            hint = f"did you mean {' or '.join(similar)}?" if similar else "see keyrun --help"
            ctx.fail(f"no such command {args[0][:100]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(module), name)
        if COMMANDS[cmd_name][0] == OPERATE:
            found = found(cmd_name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command and exit with the code of its outcome."""
        if sys.stdout is None:
            # Stdout is closed, as by `>&-` in a shell.
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            _show(error)
            code = error.code if isinstance(error, CommandError) else error.exit_code
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _show(error: click.ClickException) -> None:
    """Print an error on stderr, after the usage if the command line is invalid."""
    from keyrun.cli.screen import note

    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        # A group without a command: the message is the help.
        print(error.format_message(), file=sys.stderr)
        return
    if isinstance(error, click.UsageError) and error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
        note(f"Try '{error.ctx.command_path} --help' for help.")
        print(file=sys.stderr)
    note(f"Error: {error.format_message()}")


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"\b\nExit codes:\n{EXIT_CODES}",
)
@click.version_option(__version__, "-V", "--version", message="keyrun %(version)s")
def command() -> None:
    """Run durable workflows, and read and operate the store of any Keyrun program.

    \b
    Examples:
      keyrun demo
      keyrun run shop:checkout --key alice --input '{"id": 7}'
      keyrun runs state/ --state failed --since 2h
      keyrun history state/ order-7
      keyrun approve state/ order-7 manager
      keyrun cancel state/ --workflow checkout --since 2h

    A store is the directory that was passed to open_runtime(). Where STORE is the first argument,
    it may also be the address of a process that has a store open: unix:PATH or http://HOST:PORT.
    Commands that read a store change nothing in it and do not delay the process that writes. With
    --json, commands print one JSON object per line, with times in UTC. `keyrun COMMAND --help` has
    examples.
    """
