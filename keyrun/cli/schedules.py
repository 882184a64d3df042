"""`keyrun schedules`: list schedules with their next firing and their last run, and change them."""

from time import time

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.listing import ListingPrinter
from keyrun.cli.listing_group import ListingGroup
from keyrun.cli.reading import list_pages, read_store
from keyrun.cli.table import RUN_ID, Column
from keyrun.cli.times import duration, local, local_exactly
from keyrun.schedules import Cron, Every, Once, ScheduleStatus

COLUMNS = [
    Column("schedule", 12, id=True),
    Column("workflow", 12, 4, id=True),
    Column("when", 12, 6),
    Column("next", 11),
    Column("last", 11, 5),
    Column("state", 11, 7),
    Column("last run", RUN_ID, 3, id=True),
    Column("note", 16, 8, lines=8),
]


@click.command("list")
@options.store
@options.paging("schedule id", "ID")
@options.namespace
@options.as_json
@report_errors
def listing(
    *, store: StoreAddress, limit: int, after: str | None, namespace: str, as_json: bool
) -> None:
    """List the schedules of STORE, sorted by id.

    \b
    Examples:
      keyrun schedules list state/
      keyrun schedules list state/ --limit 10
      keyrun schedules list state/ --json | jq 'select(.problem)'

    "next" and "last" are the local times of the next and of the last firing. "state" is the state
    of the last run. "note" says why the schedule does not fire, whether it is paused or finished,
    and how many firings were skipped, because the last run had not ended, or missed.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[ScheduleStatus]:
            return await reader.schedules(limit=size, after=last)

        await list_pages(fetch, printer, limit=limit, after=after)

    printer = ListingPrinter(
        COLUMNS,
        _row,
        documents.schedule,
        noun=("schedule", "schedules"),
        name=lambda each: each.schedule_id,
        as_json=as_json,
    )
    read_store(store, namespace, ask)
    printer.end(limit=limit)


command = ListingGroup(
    "schedules", "List the schedules of STORE, and pause, resume, put or remove one.", listing
)


def _row(schedule: ScheduleStatus) -> tuple[object, ...]:
    now = time()
    return (
        schedule.schedule_id,
        schedule.workflow,
        _when(schedule),
        local(schedule.next_at, now),
        local(schedule.last_at, now),
        schedule.last_state,
        schedule.last_run_id,
        _note(schedule),
    )


def _when(schedule: ScheduleStatus) -> str:
    match schedule.when:
        case Once(at=at):
            return f"once, {local_exactly(at)}"
        case Every(seconds=seconds):
            return f"every {duration(seconds)}"
        case Cron(expression=expression, timezone=timezone):
            return f"{expression} {timezone}"


def _note(schedule: ScheduleStatus) -> str:
    notes = []
    if schedule.problem is not None:
        notes.append(schedule.problem)
    if schedule.paused:
        notes.append("paused")
    if schedule.finished:
        notes.append("finished")
    if schedule.skipped:
        notes.append(f"{schedule.skipped} skipped")
    if schedule.missed:
        notes.append(f"{schedule.missed} missed")
    return ", ".join(notes)
