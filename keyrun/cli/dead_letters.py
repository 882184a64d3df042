"""`keyrun dead-letters`: list the runs that failed permanently."""

import click

from keyrun import Reader, RunStatus
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.failures import reason_of
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.reading import list_pages, read_store
from keyrun.cli.table import RUN_ID, Column
from keyrun.cli.times import local

COLUMNS = [
    Column("run", RUN_ID, id=True),
    Column("key", 12, id=True),
    Column("workflow", 12, 5, id=True),
    Column("failed", 11, 6),
    Column("step", 8, 7, id=True),
    Column("reason", 24, lines=5),
]


@click.command("dead-letters")
@options.store
@options.run_filters
@options.oldest_first
@options.paging("run id", "RUN_ID")
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
    key: str | None,
    workflow: str | None,
    version: int | None,
    step: str | None,
    error: str | None,
    tag: str | None,
    since: float | None,
    until: float | None,
    oldest_first: bool,
    limit: int,
    after: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List the runs of STORE that failed permanently.

    \b
    Examples:
      keyrun dead-letters state/
      keyrun dead-letters state/ --workflow checkout
      keyrun dead-letters state/ --json | jq -r .run_id

    `keyrun history STORE RUN_ID` lists the attempts of a run. `keyrun redrive STORE RUN_ID` runs a
    dead letter again, and `keyrun forget STORE RUN_ID` removes it.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[RunStatus]:
            return await reader.dead_letters(
                key=key,
                workflow=workflow,
                version=version,
                step=step,
                error=error,
                tag=tag,
                since=since,
                until=until,
                limit=size,
                after=last,
                newest_first=not oldest_first,
            )

        await list_pages(fetch, listing, limit=limit, after=after)

    listing = ListingPrinter(
        COLUMNS,
        _row,
        documents.run,
        noun=("dead letter", "dead letters"),
        name=lambda each: each.run_id,
        as_json=as_json,
    )
    read_store(store, namespace, ask)
    listing.end(limit=limit)


def _row(run: RunStatus) -> tuple[object, ...]:
    failure = run.failure
    step, reason = (None, None) if failure is None else (failure.step, reason_of(failure))
    return run.run_id, run.key, run.workflow, local(run.ended_at), step, reason
