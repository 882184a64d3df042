"""`keyrun compact`: shrink the file of a store."""

from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.errors import check_store, report_errors
from keyrun.cli.screen import say, visible


@click.command("compact")
@options.directory
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a compact copy to this directory and leave STORE unchanged. STORE may be in use.",
)
@options.as_json
@report_errors
def command(*, store: Path, to: Path | None, as_json: bool) -> None:
    """Shrink the file of STORE to the size of its data.

    \b
    Examples:
      keyrun compact state/
      keyrun compact state/ --to backup/

    Without --to, no other process may have the store open, neither a runtime nor a reader. If the
    command is interrupted, the store is unchanged. With --to, the copy is a backup of the last
    commit.
    """
    from keyrun.storage import compact
    from keyrun.storage.compact import compact_in_place
    from keyrun.storage.identity import DATA_FILE, check_data_file

    check_store(store)
    check_data_file(store)
    before = (store / DATA_FILE).stat().st_size
    after = compact_in_place(store) if to is None else compact(store, to)
    if as_json:
        sizes = {"path": str(to or store), "bytes_before": before, "bytes_after": after}
        print(documents.line(sizes))
    else:
        done = f"Compacted {store}" if to is None else f"Wrote a compact copy to {to}"
        say(f"{visible(done)}: {before:,} bytes before, {after:,} bytes after.")
