"""`keyrun schedules`: what is started by the clock, when next, and what became of it last."""

from pathlib import Path
from time import time

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.listing import Listing
from keyrun.cli.lookup import look, paged
from keyrun.cli.table import Column
from keyrun.cli.times import duration, local, local_exactly
from keyrun.cli.troubles import plainly
from keyrun.schedules import Cron, Every, Once, ScheduleStatus

COLUMNS = [
    Column("schedule", 12, whole=True),
    Column("workflow", 8, 4),
    Column("when", 12, 6),
    Column("next", 11),
    Column("last", 11, 5),
    Column("state", 11, 7),
    Column("last run", 12, 3, whole=True),
    Column("note", 8, 8),
]


@click.command("schedules")
@options.store
@options.paging("SCHEDULE_ID")
@options.namespace
@options.as_json
@plainly
def command(*, store: Path, limit: int, after: str | None, namespace: str, as_json: bool) -> None:
    """List the schedules of STORE, in the order of their ids.

    \b
    Examples:
      keyrun schedules state/
      keyrun schedules state/ --limit 10
      keyrun schedules state/ --json | jq 'select(.problem)'

    "next" and "last" are times on the timetable, as local times; "state" is that of the last run.
    A note says if it is paused or has no firing left, how many firings were skipped since the run
    before had not ended, how many were missed, and what keeps it from firing.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[ScheduleStatus]:
            return await reader.schedules(limit=size, after=last)

        await paged(fetch, listing, limit=limit, after=after)

    listing = Listing(
        COLUMNS, _row, documents.schedule, name=lambda each: each.schedule_id, as_json=as_json
    )
    look(store, namespace, ask)
    listing.end(limit=limit, nothing="no schedule is there")


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
