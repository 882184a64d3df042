"""`keyrun approvals`: list the gates that wait for a person."""

from collections.abc import Sequence

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.reading import list_from_cursor, read_store
from keyrun.cli.table import RUN_ID, Column
from keyrun.cli.times import local
from keyrun.runtime.inspect.approvals import OpenGate

COLUMNS = [
    Column("run", RUN_ID, id=True),
    Column("gate", 8, id=True),
    Column("key", 12, 6, id=True),
    Column("workflow", 12, 5, id=True),
    Column("since", 11, 7),
    Column("until", 11, 7),
]


@click.command("approvals")
@options.store
@click.option("--key", metavar="KEY", help="Only gates of runs with this key.")
@click.option("--workflow", metavar="NAME", help="Only gates of runs of this workflow.")
@options.limit
@options.cursor
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
    key: str | None,
    workflow: str | None,
    limit: int,
    cursor: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List the approval gates of STORE that wait for a decision, over all runs.

    \b
    Examples:
      keyrun approvals state/
      keyrun approvals state/ --workflow checkout
      keyrun approvals state/ --json | jq -r .run_id

    `keyrun approve STORE RUN_ID GATE` and `keyrun reject STORE RUN_ID GATE` decide.
    """

    async def ask(reader: Reader) -> str | None:
        async def fetch(size: int, place: str | None) -> tuple[Sequence[OpenGate], str | None]:
            page = await reader.find_approvals(key=key, workflow=workflow, limit=size, cursor=place)
            return page.approvals, page.cursor

        return await list_from_cursor(fetch, printer, limit=limit, cursor=cursor)

    printer = ListingPrinter(
        COLUMNS,
        lambda each: (
            each.run_id,
            each.gate,
            each.key,
            each.workflow,
            local(each.since or None),
            local(each.deadline),
        ),
        documents.approval,
        noun=("open gate", "open gates"),
        name=lambda each: each.run_id,
        as_json=as_json,
    )
    printer.end(cursor=read_store(store, namespace, ask))
