"""`keyrun verify`: check every record of a store."""

from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.errors import check_store, report_errors
from keyrun.cli.exit_codes import DAMAGED
from keyrun.cli.screen import say, visible


@click.command("verify")
@options.directory
@options.as_json
@click.pass_context
@report_errors
def command(ctx: click.Context, *, store: Path, as_json: bool) -> None:
    """Check every record of STORE against its checksum and report the damaged records.

    \b
    Examples:
      keyrun verify state/
      keyrun verify state/ --json | jq .damage

    The exit code is 1 if something is damaged. If a process has the store open, the command checks
    the records only. Otherwise it also checks the structure of the file. During this check the
    store is locked, and a runtime that starts raises StoreLocked.
    """
    from keyrun.storage import verify

    check_store(store)
    found = verify(store)
    if as_json:
        print(documents.line(documents.verification(found)))
    else:
        for damage in found.damage:
            # The advice to run verify() is for other commands.
            say(visible(damage.problem.partition("; run verify()")[0]), hang="  ")
        counts = f"{found.records:,} records in {len(found.tables)} tables"
        say(f"{counts}, {len(found.damage)} damaged.")
        if not found.structure_checked:
            say("The structure of the file was not checked, because a process has the store open.")
    if not found.ok:
        ctx.exit(DAMAGED)
