"""`keyrun audit`: list who did what to a store from outside, the newest first."""

from collections.abc import Sequence

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.reading import list_from_cursor, read_store
from keyrun.cli.table import Column
from keyrun.cli.times import local
from keyrun.runtime.records.operation import AuditEntry

COLUMNS = [
    Column("time", 19),
    Column("who", 8, id=True),
    Column("operation", 16, id=True),
    Column("run", 12, 8, id=True),
    Column("key", 12, 5, id=True),
    Column("about", 8, 6),
    Column("result", 12, 7),
]


@click.command("audit")
@options.store
@click.option("--who", metavar="NAME", help="Only operations of this caller, such as 'uid 1000'.")
@click.option("--operation", metavar="NAME", help="Only operations with this name.")
@click.option("--run-id", metavar="ID", help="Only operations on this run.")
@click.option("--key", metavar="KEY", help="Only operations on this key or its runs.")
@options.since
@options.until
@options.oldest_first
@options.limit
@options.cursor
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
    who: str | None,
    operation: str | None,
    run_id: str | None,
    key: str | None,
    since: float | None,
    until: float | None,
    oldest_first: bool,
    limit: int,
    cursor: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List who did what to STORE from outside, the newest first.

    \b
    Examples:
      keyrun audit state/
      keyrun audit state/ --operation cancel --since 1d
      keyrun audit state/ --run-id order-7 --json

    An entry is an operation of a command, or of a client of the control plane. "who" is a user of
    this machine, the name of a token, or the user that an application has logged in. What the
    application does itself, such as rt.cancel(), has no entry. Entries are kept as long as ended
    runs.
    """

    async def ask(reader: Reader) -> str | None:
        async def fetch(size: int, place: str | None) -> tuple[Sequence[AuditEntry], str | None]:
            page = await reader.audit(
                who=who,
                operation=operation,
                run_id=run_id,
                key=key,
                since=since,
                until=until,
                limit=size,
                cursor=place,
                newest_first=not oldest_first,
            )
            return page.entries, page.cursor

        return await list_from_cursor(fetch, printer, limit=limit, cursor=cursor)

    printer = ListingPrinter(
        COLUMNS,
        _row,
        documents.audit,
        noun=("entry", "entries"),
        name=lambda each: each.operation_id,
        as_json=as_json,
    )
    printer.end(cursor=read_store(store, namespace, ask))


def _row(entry: AuditEntry) -> tuple[object, ...]:
    about = ", ".join(filter(None, (entry.target, entry.summary)))
    result = entry.result if entry.error is None else f"{entry.error}: {entry.result}"
    at = local(entry.at, to_the_second=True)
    return at, entry.who, entry.operation, entry.run_id, entry.key, about, result
