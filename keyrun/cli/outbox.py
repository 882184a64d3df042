"""`keyrun outbox`: the ends that wait for the terminal hook."""

from pathlib import Path

import click
import trio

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.lookup import check_namespace, look
from keyrun.cli.troubles import find_store, plainly
from keyrun.runtime.queue.outbox import OutboxStatus, discard_outcomes


@click.command("outbox")
@options.store
@click.option(
    "--discard",
    is_flag=True,
    help="Drop the waiting ends, and keep no further ends until an open with a hook.",
)
@options.namespace
@options.as_json
@plainly
def command(*, store: Path, discard: bool, namespace: str, as_json: bool) -> None:
    """Count the ends of runs in STORE that wait for on_terminal.

    \b
    Examples:
      keyrun outbox state/
      keyrun outbox state/ --discard

    Once a store has been opened with on_terminal, it keeps every end until the hook has received
    it. An application that has given up its hook drops them with --discard. Nobody else may use the
    store meanwhile; in the process that owns it, call `await runtime.discard_outcomes()`.
    """
    if discard:
        find_store(store)
        check_namespace(namespace)
        dropped = trio.run(discard_outcomes, store, namespace)
        if as_json:
            print(documents.line({"discarded": dropped}))
        else:
            print(f"discarded {_ends(dropped)}; the store keeps no further ends")
        return

    async def ask(reader: Reader) -> OutboxStatus:
        return await reader.outbox()

    found = look(store, namespace, ask)
    if as_json:
        status = {"waiting": found.waiting, "collecting": found.collecting}
        print(documents.line(status))
    else:
        kept = "keeps further ends" if found.collecting else "keeps no further ends"
        print(f"{_ends(found.waiting)} waiting for on_terminal; the store {kept}")


def _ends(count: int) -> str:
    return f"{count:,} {'end' if count == 1 else 'ends'}"
