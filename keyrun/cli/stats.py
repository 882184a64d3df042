"""`keyrun stats`: what a store counts."""

from pathlib import Path

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.lookup import look
from keyrun.cli.screen import say
from keyrun.cli.table import Column, Table
from keyrun.cli.troubles import plainly
from keyrun.runtime.inspect.counts import StoreCounts

UNFINISHED = [
    Column("workflow", 12, whole=True),
    Column("version", 7),
    Column("unfinished runs", 15),
    Column("started by code", 16),
]
UNPATCHED = [
    Column("workflow", 12, whole=True),
    Column("patch", 12, whole=True),
    Column("runs that got False", 19),
]


@click.command("stats")
@options.store
@options.namespace
@options.as_json
@plainly
def command(*, store: Path, namespace: str, as_json: bool) -> None:
    """Count the unfinished runs of STORE by workflow and version.

    \b
    Examples:
      keyrun stats state/
      keyrun stats state/ --json | jq .unpatched

    "started by code" shows the fingerprints of the code that the runs started with, and how many
    runs each has. The second table counts the unfinished runs that got False from ctx.patched. A
    patch that is not in it can lose its `if`. The store keeps these counts, so that nothing is
    scanned.
    """

    async def ask(reader: Reader) -> StoreCounts:
        return await reader.counts()

    found = look(store, namespace, ask)
    if as_json:
        print(documents.line(documents.counts(found)))
        return
    if not found.unfinished:
        say("no unfinished runs")
    else:
        table = Table(UNFINISHED)
        for each in found.unfinished:
            codes = [
                f"{code} ({runs})" for code, runs in each.by_fingerprint.items() if code is not None
            ]
            table.add((each.workflow, each.version, each.runs, ", ".join(codes) or None))
        table.end()
    if found.unpatched:
        print()
        table = Table(UNPATCHED)
        for patch in found.unpatched:
            table.add((patch.workflow, patch.patch, patch.runs))
        table.end()
