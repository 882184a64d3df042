"""`keyrun open`: show a store in the browser."""

import os
import sys
from functools import partial
from pathlib import Path

import click
import trio

from keyrun import App
from keyrun.cli import options
from keyrun.cli.addresses import StoreAddress, quoted, token
from keyrun.cli.errors import check_store, report_errors
from keyrun.cli.exit_codes import FAILED, NO_STORE, USAGE, CommandError
from keyrun.cli.operate import APP
from keyrun.cli.reading import check_namespace
from keyrun.cli.screen import note, visible
from keyrun.cli.stopping import Stopping
from keyrun.cli.target import find_app
from keyrun.control.options import Control
from keyrun.extras import need
from keyrun.storage.opening import is_url


@click.command("open")
@options.store
@click.option(
    "--http",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the page. With port 0 the system chooses a port.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Host that browsers may name. Repeat the option for more hosts.  [default: those of this "
    "machine]",
)
@options.namespace
@APP
@report_errors
def command(
    *,
    store: StoreAddress,
    http: str,
    allowed_hosts: tuple[str, ...],
    namespace: str,
    app: str | None,
) -> None:
    """Show STORE in the browser, until Ctrl-C.

    \b
    Examples:
      keyrun open state/
      keyrun open http://host:8470 --token-file token

    The command prints one line with the address of a page, which only this user can read: the
    address has a token that ends with the command.

    If a process has STORE open with a control plane, what you do in the page is done there. If no
    process has STORE open, the page only reads it. The page follows when that changes. Without
    --app, values that the transform of the application has encrypted are not shown while no process
    has STORE open.

    \b
    Exit codes:
      0  stopped by SIGINT or SIGTERM
      1  the address of the page is in use
      2  invalid option, namespace or app
      4  there is no such store, or the process at
         the address does not answer
    """
    check_namespace(namespace)
    if isinstance(store, Path):
        check_store(store)
    elif is_url(store):
        raise CommandError(
            "keyrun open shows a directory or the process at an address, not a database; serve the "
            "database with --http, and open the page of that process",
            USAGE,
        )
    for library in ("anycorn", "h11"):
        need(library, for_="keyrun open", extra="control")
    try:
        control = Control(http=http, allowed_hosts=allowed_hosts)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error
    found = App() if app is None else find_app(app)
    given = token() if isinstance(store, str) else None
    with Stopping() as stopping:
        trio.run(partial(_show, store, control, namespace, found, given, stopping))


async def _show(
    store: StoreAddress,
    control: Control,
    namespace: str,
    app: App,
    given: str | None,
    stopping: Stopping,
) -> None:
    """Serve the page until a signal arrives."""
    from keyrun.control.background import beside
    from keyrun.control.listening import CannotListen
    from keyrun.control.viewer import Viewer, shown

    async def say_changes(viewer: Viewer) -> None:
        while True:
            await viewer.changed()
            if viewer.is_live:
                note(f"A process has {quoted(store)} open. What you do in the page is done there.")
            else:
                note(f"No process answers for {quoted(store)} any more. The page only reads it.")

    stop = trio.Event()
    stopping.call(lambda _: stop.set())
    page = shown(
        store,
        control,
        namespace=namespace,
        token=given,
        workflows=app.workflows,
        transform=app.transform,
        redact=app.redact,
    )
    try:
        async with page as (viewer, address), beside(partial(say_changes, viewer)):
            how = "live" if viewer.is_live else "read-only, because no process has it open"
            _say(f"Open {address} to see {quoted(store)} ({how}). Ctrl-C ends it.")
            await stop.wait()
    except CannotListen as error:
        raise CommandError(str(error.strerror), FAILED if error.in_use else USAGE) from error
    except PermissionError as error:
        raise CommandError(str(error), NO_STORE) from error


def _say(text: str) -> None:
    try:
        print(visible(text), flush=True)
    except OSError:
        # The reader of the output has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
