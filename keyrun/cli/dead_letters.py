"""`keyrun dead-letters`: the runs whose step failed for good."""

from pathlib import Path

import click

from keyrun import Reader, RunStatus
from keyrun.cli import documents, options
from keyrun.cli.history import why
from keyrun.cli.listing import Listing
from keyrun.cli.lookup import look, paged
from keyrun.cli.table import Column
from keyrun.cli.times import local
from keyrun.cli.troubles import plainly

COLUMNS = [
    Column("run", 12, whole=True),
    Column("key", 8, 7),
    Column("workflow", 8, 5),
    Column("failed", 11, 6),
    Column("step", 8, 7),
    Column("why", 16),
]


@click.command("dead-letters")
@options.store
@options.about_runs
@click.option("--oldest-first", is_flag=True, help="In the order of admission.")
@options.paging("RUN_ID")
@options.namespace
@options.as_json
@plainly
def command(
    *,
    store: Path,
    key: str | None,
    workflow: str | None,
    tag: str | None,
    since: float | None,
    until: float | None,
    oldest_first: bool,
    limit: int,
    after: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List the runs of STORE that failed for good and wait for somebody to look.

    \b
    Examples:
      keyrun dead-letters state/
      keyrun dead-letters state/ --workflow checkout
      keyrun dead-letters state/ --json | jq -r .run_id

    `keyrun history STORE RUN_ID` tells how it came to that. In the process that owns the store,
    `await runtime.redrive(run_id)` gives a run another chance and `forget(run_id)` drops it.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[RunStatus]:
            return await reader.dead_letters(
                key=key,
                workflow=workflow,
                tag=tag,
                since=since,
                until=until,
                limit=size,
                after=last,
                newest_first=not oldest_first,
            )

        await paged(fetch, listing, limit=limit, after=after)

    listing = Listing(COLUMNS, _row, documents.run, name=lambda each: each.run_id, as_json=as_json)
    look(store, namespace, ask)
    listing.end(limit=limit, nothing="no dead letters")


def _row(run: RunStatus) -> tuple[object, ...]:
    failure = run.failure
    step, reason = (None, None) if failure is None else (failure.step, why(failure))
    return run.run_id, run.key, run.workflow, local(run.ended_at), step, reason
