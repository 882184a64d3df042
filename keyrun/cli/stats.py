"""`keyrun stats`: count runs by state and error, unfinished runs by code, and patches."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import click

from keyrun import Reader, RunStatus, State
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.reading import PAGE, read_store
from keyrun.cli.screen import ProgressLine, note
from keyrun.cli.table import Column, print_table
from keyrun.runtime.inspect.counts import StoreCounts

RUNS = [
    Column("workflow", 12, id=True),
    Column("version", 7),
    Column("state", 11),
    Column("error", 16, id=True),
    Column("runs", 5),
]
UNFINISHED = [
    Column("workflow", 12, id=True),
    Column("version", 7),
    Column("unfinished runs", 15),
    Column("started by code", 18, lines=100),
]
UNPATCHED = [
    Column("workflow", 12, id=True),
    Column("patch", 12, id=True),
    Column("runs that got False", 19),
]

Group: TypeAlias = tuple[str, int, State, str]
"""Workflow, version, state, and error or an empty string."""


@click.command("stats")
@options.store
@options.state("Count only runs")
@options.run_filters
@options.group
@click.option("--quick", is_flag=True, help="Print only the counts that the store keeps.")
@options.namespace
@options.as_json
@report_errors
def command(
    *, store: StoreAddress, quick: bool, namespace: str, as_json: bool, **filters: Any
) -> None:
    """Count the runs of STORE by workflow, version, state and error.

    \b
    Examples:
      keyrun stats state/
      keyrun stats state/ --since 1d --state failed
      keyrun stats state/ --quick
      keyrun stats state/ --json | jq .unpatched

    The first table counts the runs that match the filters. "error" is the type of the exception
    with which runs failed, or the kind of the failure, or why they are quarantined. This reads
    every run, about 20,000 per second.

    The other tables are counts that the store keeps, of all unfinished runs. "started by code" is
    the fingerprint of the code that started the runs, with the number of runs. The last table
    counts the unfinished runs that got False from ctx.patched(). If a patch is not in this table,
    you can remove its `if`.
    """
    states = [State(state) for state in filters.pop("states")] or None

    async def ask(reader: Reader) -> tuple[StoreCounts, Counter[Group] | None]:
        counted = None if quick else await count(reader, {**filters, "state": states})
        return await reader.counts(), counted

    found, counted = read_store(store, namespace, ask)
    if as_json:
        runs = {} if counted is None else documents.run_counts(sorted(counted.items()))
        print(documents.line({**runs, **documents.counts(found)}))
        return
    if counted is not None:
        _print_runs(counted)
    _print_kept(found, below=bool(counted))


async def count(reader: Reader, filters: Mapping[str, Any]) -> Counter[Group]:
    """Count the runs that match."""
    counted: Counter[Group] = Counter()
    progress, examined, cursor, more = ProgressLine(), 0, None, True
    while more:
        page = await reader.find_runs(**filters, limit=PAGE, cursor=cursor)
        counted.update(map(_group_of, page.runs))
        examined += page.examined
        cursor, more = page.cursor, page.cursor is not None
        if more:
            progress.show(f"Counting: {counted.total():,} of {examined:,} runs match")
    progress.clear()
    return counted


def _group_of(run: RunStatus) -> Group:
    error = ""
    if run.failure is not None:
        error = run.failure.error_type or str(run.failure.kind)
    elif run.quarantine_cause is not None:
        error = str(run.quarantine_cause)
    return run.workflow, run.version, run.state, error.removeprefix("builtins.")


def _print_runs(counted: Counter[Group]) -> None:
    if counted:
        print_table(RUNS, ((*group, runs) for group, runs in sorted(counted.items())))
    else:
        note("No runs found.")


def _print_kept(found: StoreCounts, *, below: bool) -> None:
    """Print the counts that the store keeps. `below` says whether there is a table above."""
    if not found.unfinished:
        note("No unfinished runs found.")
    else:
        print("\n" * below, end="")
        rows = []
        for each in found.unfinished:
            codes = [
                f"{code} ({runs})" for code, runs in each.by_fingerprint.items() if code is not None
            ]
            rows.append((each.workflow, each.version, each.runs, ", ".join(codes) or None))
        print_table(UNFINISHED, rows)
    if found.unpatched:
        print()
        print_table(UNPATCHED, ((each.workflow, each.patch, each.runs) for each in found.unpatched))
