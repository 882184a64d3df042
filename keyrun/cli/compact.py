"""`keyrun compact`: give back the space that a store no longer needs."""

from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.troubles import find_store, plainly


@click.command("compact")
@options.store
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a compact copy there and leave STORE as it is, also while it is in use.",
)
@options.as_json
@plainly
def command(*, store: Path, to: Path | None, as_json: bool) -> None:
    """Make STORE as small as what is in it.

    \b
    Examples:
      keyrun compact state/
      keyrun compact state/ --to backup/

    Without --to nobody else may use the store meanwhile, neither a runtime nor a reader: stop
    them first. If it is cut off, the store is as it was.
    """
    from keyrun.storage import compact
    from keyrun.storage.compact import compact_in_place
    from keyrun.storage.identity import DATA_FILE, check_data_file

    find_store(store)
    check_data_file(store)
    before = (store / DATA_FILE).stat().st_size
    after = compact_in_place(store) if to is None else compact(store, to)
    if as_json:
        sizes = {"path": str(to or store), "bytes_before": before, "bytes_after": after}
        print(documents.line(sizes))
    else:
        print(f"{to or store} has {after:,} bytes, {before:,} before")
