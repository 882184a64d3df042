"""`keyrun why`: explain why a run or a key does not move."""

import sys

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors, unknown_run
from keyrun.cli.reading import read_store
from keyrun.cli.screen import Screen
from keyrun.status import Explanation


@click.command("why")
@options.store
@click.argument("run_id", required=False)
@click.option("--key", metavar="KEY", help="Explain this key instead of a run.")
@options.namespace
@options.as_json
@report_errors
def command(
    *, store: StoreAddress, run_id: str | None, key: str | None, namespace: str, as_json: bool
) -> None:
    """Explain why a run of STORE, or a key, does not move.

    \b
    Examples:
      keyrun why state/ order-7
      keyrun why state/ --key alice

    The exit code is 1 if the run does not exist.
    """
    if (run_id is None) == (key is None):
        raise click.UsageError("name a run, or a key with --key KEY, and not both")

    async def ask(reader: Reader) -> Explanation | None:
        if key is not None:
            return await reader.explain_key(key)
        assert run_id is not None
        return await reader.explain(run_id)

    found = read_store(store, namespace, ask)
    if found is None:
        assert run_id is not None
        raise unknown_run(run_id, store)
    if as_json:
        print(documents.line(documents.explanation(found)))
    else:
        Screen.of(sys.stdout).print(found.sentence)
