"""`keyrun keys`: list the ordering keys that have unfinished runs."""

from collections.abc import Sequence

import click

from keyrun import Reader, State
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.reading import list_pages, read_store
from keyrun.cli.table import Column
from keyrun.cli.times import waiting
from keyrun.runtime.inspect.keys import EntityStatus, KeyStatus

COLUMNS = [
    Column("key", 12, id=True),
    Column("runs", 5),
    Column("state", 11),
    Column("paused", 6, 6),
    Column("first run", 16, 7, id=True),
    Column("waiting for", 12, 5),
]


ENTITY_COLUMNS = [Column("entity", 12, id=True), Column("bytes of state", 14)]


@click.command("keys")
@options.store
@options.state("Only keys whose first run is")
@click.option("--key", metavar="KEY", help="Only this key, with its entities.")
@options.paging("key", "KEY")
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
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

    "runs" is the number of unfinished runs of the key. "first run" is the run that holds the key,
    and "state" is the state of this run. A run that lets later runs overtake it while it waits is
    counted, but it is not the first run. --json has the reason if a run is quarantined.

    Keys are sorted by their length, and then by their bytes. With --key, the command also lists
    the entities that keep state under the key.
    """
    wanted = frozenset(states)
    quarantined = True if wanted == {State.QUARANTINED} else None

    async def ask(reader: Reader) -> list[EntityStatus]:
        async def fetch(size: int, last: str | None) -> list[KeyStatus]:
            return await reader.keys(key=key, quarantined=quarantined, limit=size, after=last)

        matches = (lambda key: key.state in wanted) if wanted else None
        await list_pages(fetch, listing, limit=limit, after=after, matches=matches)
        return [] if key is None else await reader.entities(key)

    listing = ListingPrinter(
        COLUMNS,
        _row,
        documents.key,
        noun=("key", "keys with unfinished runs"),
        name=lambda each: each.key,
        as_json=as_json,
    )
    entities = read_store(store, namespace, ask)
    listing.end(limit=limit)
    if entities:
        kept = ListingPrinter(
            ENTITY_COLUMNS,
            lambda each: (each.name, "damaged" if each.size is None else each.size),
            documents.entity,
            noun=("entity", "entities"),
            name=lambda each: each.name,
            as_json=as_json,
        )
        for each in entities:
            kept.add(each)
        kept.end()


def _row(key: KeyStatus) -> tuple[object, ...]:
    waits = waiting(key.waiting_on, key.waiting_until)
    return key.key, key.runs, key.state, "yes" if key.paused else "", key.head, waits
