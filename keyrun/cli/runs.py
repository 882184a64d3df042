"""`keyrun runs`: the runs of a store, the newest first."""

from collections.abc import Sequence
from pathlib import Path

import click

from keyrun.cli import documents, options
from keyrun.cli.exits import plainly
from keyrun.cli.lookup import look, paged, printer
from keyrun.cli.screen import Column, say, table
from keyrun.cli.times import duration, local
from keyrun.runtime import Reader, RunStatus, State

COLUMNS = [
    Column("run", 12, whole=True),
    Column("key", 8, 7),
    Column("workflow", 8, 5),
    Column("state", 11),
    Column("submitted", 11, 8),
    Column("took", 7, 6),
    Column("at", 8, 4),
]


@click.command("runs", short_help="List runs, the newest first")
@options.store
@options.state
@options.about_runs
@click.option("--group", help="Only the members of this group.")
@click.option("--oldest-first", is_flag=True, help="In the order of admission.")
@options.paging("RUN_ID")
@options.namespace
@options.as_json
@plainly
def command(
    *,
    store: Path,
    states: Sequence[str],
    key: str | None,
    workflow: str | None,
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
      keyrun runs state/ --key alice --limit 10
      keyrun runs state/ --workflow checkout --tag eu
      keyrun runs state/ --group import-7 --state failed
      keyrun runs state/ --state running --state waiting
      keyrun runs state/ --limit 0 --json | jq -r .run_id

    "took" is the time from start to end, or until now. "at" is the step that runs, or what the
    run waits for. Filters that are given together must all fit.
    """

    async def ask(reader: Reader) -> None:
        async def fetch(size: int, last: str | None) -> list[RunStatus]:
            return await reader.runs(
                state=[State(state) for state in states] or None,
                key=key,
                workflow=workflow,
                tag=tag,
                group=group,
                since=since,
                until=until,
                limit=size,
                after=last,
                newest_first=not oldest_first,
            )

        await paged(fetch, lambda run: run.run_id, each, limit=limit, after=after)

    each, kept = printer(documents.run, as_json)
    look(store, namespace, ask)
    if not as_json:
        show(kept, limit)


def show(runs: list[RunStatus], limit: int) -> None:
    """A table of runs."""
    if not runs:
        say("no run fits")
        return
    from time import time

    now = time()
    table(
        COLUMNS,
        (
            (
                run.run_id,
                run.key,
                run.workflow,
                run.state,
                local(run.submitted_at or None, now),
                duration(_took(run, now)),
                _at(run),
            )
            for run in runs
        ),
    )
    if len(runs) == limit:
        say(f"these are {limit}; go on with --after {runs[-1].run_id}")


def _took(run: RunStatus, now: float) -> float | None:
    return None if run.started_at is None else (run.ended_at or now) - run.started_at


def _at(run: RunStatus) -> str:
    if run.state.terminal:
        return ""
    return run.waiting_on or run.step or ""
