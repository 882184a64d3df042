"""`keyrun keys`: what the ordering keys of a store are doing."""

from collections.abc import Sequence
from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.exits import plainly
from keyrun.cli.lookup import look, paged, printer
from keyrun.cli.screen import Column, say, table
from keyrun.runtime import KeyStatus, Reader, State

COLUMNS = [
    Column("key", 12, whole=True),
    Column("runs", 5),
    Column("state", 11),
    Column("held", 6, 6),
    Column("first run", 12, 7, whole=True),
]


@click.command("keys", short_help="List keys with unfinished runs")
@options.store
@options.state
@click.option("--key", help="Only this one.")
@options.paging("KEY")
@options.namespace
@options.as_json
@plainly
def command(
    *,
    store: Path,
    states: Sequence[str],
    key: str | None,
    limit: int,
    after: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List the keys of STORE that have unfinished runs.

    \b
    Examples:
      keyrun keys state/
      keyrun keys state/ --state quarantined
      keyrun keys state/ --json | jq 'select(.runs > 100)'

    "runs" is how many have not ended; "first run" is the one whose turn it is, and "state" is
    its state; --json has the reason if it is quarantined. Keys come in the order of the store's
    index: short ones first.
    """
    wanted = frozenset(states)
    quarantined = True if wanted == {State.QUARANTINED} else None

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[KeyStatus]:
            return await reader.keys(key=key, quarantined=quarantined, limit=size, after=last)

        fits = (lambda key: key.state in wanted) if wanted else None
        await paged(fetch, lambda key: key.key, each, limit=limit, after=after, fits=fits)

    each, kept = printer(documents.key, as_json)
    look(store, namespace, ask)
    if not as_json:
        show(kept, limit)


def show(keys: list[KeyStatus], limit: int) -> None:
    """A table of keys."""
    if not keys:
        say("no key has unfinished runs that fit")
        return
    table(
        COLUMNS,
        (
            (each.key, each.runs, each.state, "paused" if each.paused else "", each.head)
            for each in keys
        ),
    )
    if len(keys) == limit:
        say(f"these are {limit}; go on with --after {keys[-1].key}")
