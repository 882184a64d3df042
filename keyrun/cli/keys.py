"""`keyrun keys`: what the ordering keys of a store are doing."""

from collections.abc import Sequence
from pathlib import Path

import click

from keyrun import Reader, State
from keyrun.cli import documents, options
from keyrun.cli.listing import Listing
from keyrun.cli.lookup import look, paged
from keyrun.cli.table import Column
from keyrun.cli.times import waiting
from keyrun.cli.troubles import plainly
from keyrun.runtime.inspect.entities import EntityStatus
from keyrun.runtime.inspect.keys import KeyStatus

COLUMNS = [
    Column("key", 12, whole=True),
    Column("runs", 5),
    Column("state", 11),
    Column("held", 6, 6),
    Column("first run", 12, 7, whole=True),
    Column("waits for", 8, 5),
]


ENTITY_COLUMNS = [Column("entity", 12, whole=True), Column("bytes of state", 14)]


@click.command("keys")
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
      keyrun keys state/ --key customer-42
      keyrun keys state/ --json | jq 'select(.runs > 100)'

    "runs" is how many have not ended; "first run" is the one whose turn it is, and "state" is
    its state; --json has the reason if it is quarantined. Runs that let others go ahead while
    they sleep are counted, and are not the first. Keys come in the order of the store's index:
    short ones first. With --key the entities are told that keep a state under it, too.
    """
    wanted = frozenset(states)
    quarantined = True if wanted == {State.QUARANTINED} else None

    async def ask(reader: Reader) -> list[EntityStatus]:
        async def fetch(size: int, last: str | None) -> list[KeyStatus]:
            return await reader.keys(key=key, quarantined=quarantined, limit=size, after=last)

        fits = (lambda key: key.state in wanted) if wanted else None
        await paged(fetch, listing, limit=limit, after=after, fits=fits)
        return [] if key is None else await reader.entities(key)

    listing = Listing(COLUMNS, _row, documents.key, name=lambda each: each.key, as_json=as_json)
    entities = look(store, namespace, ask)
    listing.end(limit=limit, nothing="no key has unfinished runs that fit")
    if entities:
        kept = Listing(
            ENTITY_COLUMNS,
            lambda each: (each.name, "damaged" if each.size is None else each.size),
            documents.entity,
            name=lambda each: each.name,
            as_json=as_json,
        )
        for each in entities:
            kept.take(each)
        kept.end(limit=-1, nothing="")


def _row(key: KeyStatus) -> tuple[object, ...]:
    waits = waiting(key.waiting_on, key.waiting_until)
    return key.key, key.runs, key.state, "paused" if key.paused else "", key.head, waits
