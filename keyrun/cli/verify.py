"""`keyrun verify`: look at every record of a store."""

from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.exits import DAMAGED
from keyrun.cli.screen import visible
from keyrun.cli.troubles import find_store, plainly


@click.command("verify")
@options.store
@options.as_json
@click.pass_context
@plainly
def command(ctx: click.Context, *, store: Path, as_json: bool) -> None:
    """Check every record of STORE against its checksum, and report each that is damaged.

    \b
    Examples:
      keyrun verify state/
      keyrun verify state/ --json | jq .damage

    Exits with 0 if all is as it was written, with 1 if something is damaged. A store that is in
    use is checked record by record; if nobody uses it, the structure of the file is checked too,
    and a runtime that starts meanwhile finds it locked.
    """
    from keyrun.storage import verify

    find_store(store)
    found = verify(store)
    if as_json:
        print(documents.line(documents.verification(found)))
    else:
        for damage in found.damage:
            # What to do next is what this command is for.
            print(visible(damage.problem.partition("; run verify()")[0]))
        print(
            f"{found.records} records in {len(found.tables)} tables, {len(found.damage)} damaged"
            + ("" if found.structure_checked else "; the structure was not checked")
        )
    if not found.ok:
        ctx.exit(DAMAGED)
