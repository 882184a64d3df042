"""`keyrun runs`: list the runs of a store, the newest first."""

from collections.abc import Sequence
from time import time

import click

from keyrun import Reader, RunStatus, State
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.failures import reason_of
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.reading import list_pages, read_store
from keyrun.cli.table import RUN_ID, Column
from keyrun.cli.times import duration, local, waiting

COLUMNS = [
    Column("run", RUN_ID, id=True),
    Column("key", 12, id=True),
    Column("workflow", 12, 5, id=True),
    Column("state", 11),
    Column("submitted", 11, 8),
    Column("took", 7, 6),
    Column("at", 12, 4),
    Column("reason", 16, 3),
]


@click.command("runs")
@options.store
@options.state("Only runs")
@options.run_filters
@options.group
@options.oldest_first
@options.paging("run id", "RUN_ID")
@options.namespace
@options.as_json
@report_errors
def command(
    *,
    store: StoreAddress,
    states: Sequence[str],
    key: str | None,
    workflow: str | None,
    version: int | None,
    step: str | None,
    error: str | None,
    tag: str | None,
    group: str | None,
    since: float | None,
    until: float | None,
    oldest_first: bool,
    limit: int,
    after: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """List the runs of STORE, the newest first.

    \b
    Examples:
      keyrun runs state/
      keyrun runs state/ --state failed --since 2h
      keyrun runs state/ --error CardError --step charge
      keyrun runs state/ --key alice --limit 10
      keyrun runs state/ --workflow checkout --tag eu
      keyrun runs state/ --group import-7 --state failed
      keyrun runs state/ --state running --state waiting
      keyrun runs state/ --limit 0 --json | jq -r .run_id

    A run must match all filters. "took" is the time from the start to the end of the run, or until
    now. "at" is the current step, the step that is being compensated, or what the run waits for.
    "reason" says why the run failed, was cancelled or is quarantined.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[RunStatus]:
            return await reader.runs(
                state=[State(state) for state in states] or None,
                key=key,
                workflow=workflow,
                version=version,
                step=step,
                error=error,
                tag=tag,
                group=group,
                since=since,
                until=until,
                limit=size,
                after=last,
                newest_first=not oldest_first,
            )

        await list_pages(fetch, listing, limit=limit, after=after)

    listing = ListingPrinter(
        COLUMNS,
        row,
        documents.run,
        noun=("run", "runs"),
        name=lambda each: each.run_id,
        as_json=as_json,
    )
    read_store(store, namespace, ask)
    listing.end(limit=limit)


def row(run: RunStatus) -> tuple[object, ...]:
    """Return the row of a run."""
    now = time()
    return (
        run.run_id,
        run.key,
        run.workflow,
        run.state,
        local(run.submitted_at or None, now),
        duration(_took(run, now)),
        _at(run),
        _reason(run),
    )


def _took(run: RunStatus, now: float) -> float | None:
    return None if run.started_at is None else (run.ended_at or now) - run.started_at


def _at(run: RunStatus) -> str:
    if run.state.terminal:
        return ""
    if run.compensating and run.compensation is not None:
        return f"compensation of {run.compensation.step}" if run.compensation.step else ""
    return waiting(run.waiting_on, run.waiting_until) or run.step or ""


def _reason(run: RunStatus) -> str | None:
    if run.failure is not None:
        return reason_of(run.failure)
    if run.quarantine_cause is not None:
        return f"{run.quarantine_cause}: {run.reason}"
    return run.reason
