"""`keyrun outbox`: count the outcomes that wait for the terminal hook, and drop them."""

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors
from keyrun.cli.reading import read_store
from keyrun.cli.screen import say
from keyrun.runtime.queue.outbox import OutboxStatus


@click.command("outbox")
@options.store
@click.option(
    "--discard",
    is_flag=True,
    help="Drop the waiting outcomes. The store keeps no new ones until a runtime has a hook again.",
)
@options.namespace
@options.as_json
@report_errors
def command(*, store: StoreAddress, discard: bool, namespace: str, as_json: bool) -> None:
    """Count the outcomes in STORE that wait for the on_terminal hook.

    \b
    Examples:
      keyrun outbox state/
      keyrun outbox state/ --discard

    After a runtime has opened the store with on_terminal, the store keeps the outcome of every
    run until the hook has received it. If your program no longer has a hook, drop the outcomes
    with --discard. A process that has the store open drops them itself, and needs control=True.
    """
    if discard:
        from keyrun.cli.operate import perform
        from keyrun.control.table import OPERATIONS

        dropped: int = perform(OPERATIONS["discard_outcomes"], store, {}, namespace)
        if as_json:
            print(documents.line({"discarded": dropped}))
        else:
            say(f"Dropped {_outcomes(dropped)}. The store keeps no new outcomes.")
        return

    async def ask(reader: Reader) -> OutboxStatus:
        return await reader.outbox()

    found = read_store(store, namespace, ask)
    if as_json:
        status = {"waiting": found.waiting, "collecting": found.collecting}
        print(documents.line(status))
    else:
        new = "new outcomes" if found.collecting else "no new outcomes"
        say(f"{_outcomes(found.waiting)} waiting for on_terminal. The store keeps {new}.")


def _outcomes(count: int) -> str:
    return f"{count:,} {'outcome' if count == 1 else 'outcomes'}"
