"""`keyrun stats`: count unfinished runs, by workflow and by patch."""

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.reading import read_store
from keyrun.cli.screen import note
from keyrun.cli.table import Column, Table
from keyrun.runtime.inspect.counts import StoreCounts

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


@click.command("stats")
@options.store
@options.namespace
@options.as_json
@report_errors
def command(*, store: StoreAddress, namespace: str, as_json: bool) -> None:
    """Count the unfinished runs of STORE by workflow and version.

    \b
    Examples:
      keyrun stats state/
      keyrun stats state/ --json | jq .unpatched

    "started by code" is the fingerprint of the code that started the runs, with the number of
    runs. The second table counts the unfinished runs that got False from ctx.patched(). If a patch
    is not in this table, you can remove its `if`. The store keeps these counts, so the command
    reads no runs.
    """

    async def ask(reader: Reader) -> StoreCounts:
        return await reader.counts()

    found = read_store(store, namespace, ask)
    if as_json:
        print(documents.line(documents.counts(found)))
        return
    if not found.unfinished:
        note("No unfinished runs found.")
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
