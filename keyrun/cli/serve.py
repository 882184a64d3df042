"""`keyrun serve`: open an application, and serve it until a signal arrives."""

import logging
import math
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import lmdb
import trio

from keyrun import App, KeyrunError
from keyrun.cli import options
from keyrun.cli.addresses import DatabaseOrDirectory
from keyrun.cli.errors import has_store, report_errors
from keyrun.cli.exit_codes import FAILED, LOST_STORE, NO_STORE, OK, USAGE, CommandError
from keyrun.cli.reading import check_namespace
from keyrun.cli.screen import visible
from keyrun.cli.stopping import Stopping
from keyrun.cli.target import find_app
from keyrun.control.background import beside
from keyrun.control.options import Control
from keyrun.control.tokens import BadTokenFile
from keyrun.extras import need
from keyrun.logging import JsonFormatter, StepFilter
from keyrun.runtime.logger import logger
from keyrun.storage import StoreError
from keyrun.storage.opening import is_url

if TYPE_CHECKING:
    from keyrun.hosting.served import Served

LEVELS = ("debug", "info", "warning", "error")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command("serve")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--store",
    required=True,
    type=DatabaseOrDirectory(),
    metavar="DIR|URL",
    help="Directory of the store, created if there is none, or the URL of a PostgreSQL database, "
    "which several machines can serve.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address to listen on besides the unix socket, such as 127.0.0.1:8470. With port 0 the "
    "system chooses a port.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the tokens for --http, created if there is none.  "
    "[default: tokens in the directory of the store]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Host that browsers may name, such as keyrun.example.org. Repeat the option for more "
    "hosts.  [default: those of this machine]",
)
@options.namespace
@click.option(
    "--when-locked",
    type=click.Choice(["fail", "wait"]),
    help="Whether to fail or to wait if another process has the directory open.  [default: fail]",
)
@click.option(
    "--lock-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait with --when-locked wait. inf waits forever.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time that running steps have to finish after a signal.  [default: that of the app]",
)
@click.option("--json-logs", is_flag=True, help="Write log lines as JSON objects.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="Least level of log lines.",
)
@click.pass_context
@report_errors
def command(
    ctx: click.Context,
    /,
    *,
    target: str,
    store: Path | str,
    http: str | None,
    token_file: Path | None,
    allowed_hosts: tuple[str, ...],
    namespace: str,
    when_locked: str | None,
    lock_timeout: float,
    drain_timeout: float | None,
    json_logs: bool,
    log_level: str,
) -> None:
    """Open an application and serve it until a signal arrives.

    \b
    Examples:
      keyrun serve shop:app --store state/
      keyrun serve shop:app --store state/ \\
          --http 127.0.0.1:8470

    MODULE:APP names a keyrun.App. The module is imported from the current directory. One line on
    stdout says where the HTTP API is. With --json-logs it is a log line. Log lines go to stderr.

    SIGTERM and SIGINT drain the application: no step starts any more, running steps have
    --drain-timeout to finish, and unfinished runs resume at the next start. A second signal ends
    the process at once. Nothing that is committed is lost.

    With --http, /livez and /readyz answer from the start until the application has drained.

    \b
    Exit codes:
      0    drained after a signal
      1    the address is in use, or the application failed
      2    invalid option, module, app or token file
      4    the store cannot be opened or locked
      6    the store failed while it was open
      130  ended by a second SIGINT
      143  ended by a second SIGTERM
    """
    check_namespace(namespace)
    if http is None and (token_file is not None or allowed_hosts):
        raise CommandError("--token-file and --allowed-host require --http HOST:PORT", USAGE)
    if math.isnan(lock_timeout) or (drain_timeout is not None and math.isnan(drain_timeout)):
        raise CommandError("a timeout must be a number of seconds, got nan", USAGE)
    need("anycorn", for_="keyrun serve", extra="control")
    try:
        control = Control(http=http, token_file=token_file, allowed_hosts=allowed_hosts)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error
    if when_locked is not None and is_url(store):
        raise CommandError(
            "--when-locked is for a directory: processes that serve the URL of a database share it",
            USAGE,
        )
    opening = {"namespace": namespace, "when_locked": when_locked, "lock_timeout": lock_timeout}
    with Stopping() as stopping:
        app = find_app(target)
        if drain_timeout is not None:
            app = attrs.evolve(app, drain_timeout=drain_timeout)
        if isinstance(store, Path):
            has_store(store)
        _set_up_logging(log_level, json_logs=json_logs)
        server = Server(target, stopping, json_logs=json_logs)
        code = trio.run(partial(server.run, store, app, control, **opening))
    ctx.exit(code)


def _set_up_logging(level: str, *, json_logs: bool) -> None:
    """Write log lines to stderr. Without JSON, an application that has set up its own log lines
    keeps them."""
    handler = logging.StreamHandler()
    handler.addFilter(StepFilter())
    handler.setFormatter(JsonFormatter() if json_logs else _TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=json_logs)
    logging.captureWarnings(json_logs)


class _TextFormatter(logging.Formatter):
    """Write records as text. Keys, inputs and texts of errors come from anybody, so letters that
    would control the terminal are escaped, and only the first line of a record is not indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).expandtabs().split("\n")
        return "\n    ".join(map(visible, lines))


class Server:
    """One run of the command."""

    def __init__(self, target: str, stopping: Stopping, *, json_logs: bool) -> None:
        self._target = target
        self._stopping = stopping
        self._json_logs = json_logs
        self._stop = trio.Event()
        self._is_open = False

    async def run(self, store: Path | str, app: App, control: Control, **opening: Any) -> int:
        """Serve until a signal arrives, and return the exit code."""
        from keyrun.hosting.served import served

        self._stopping.call(self._stopped)
        try:
            with trio.CancelScope() as scope:
                async with (
                    beside(partial(self._stop_opening, scope)),
                    served(store, app, control, **opening) as server,
                ):
                    self._is_open = True
                    self._announce(server)
                    await self._stop.wait()
        except Exception as raised:
            return self._report(raised)
        return OK

    def _stopped(self, number: signal.Signals) -> None:
        logger.info(
            "stopping because of %s; a second signal ends the process at once",
            number.name,
            extra={"event": "stopping"},
        )
        self._stop.set()

    async def _stop_opening(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        if not self._is_open:
            scope.cancel()

    def _announce(self, server: "Served") -> None:
        """Say where the API is."""
        places = [] if server.socket is None else [f"unix:{server.socket}"]
        if server.url is not None:
            places.insert(0, f"{server.url} (tokens in {server.tokens})")
        at = f" at {' and '.join(places)}" if places else ""
        said = visible(f"Serving {self._target}{at}")
        if self._json_logs:
            logger.info("%s", said, extra={"event": "serving", "url": server.url})
            return
        if server.page is not None and sys.stdout.isatty():
            # A person reads it. Elsewhere it may be a log, which must not have tokens.
            said += f"\nOpen {visible(server.page)}"
        try:
            print(said, flush=True)
        except OSError:
            # The reader of the output has ended. Steps that print must not fail because of that.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _report(self, raised: Exception) -> int:
        """Log why the command ends, and return the exit code."""
        from keyrun.control.listening import CannotListen

        error: BaseException = raised
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        event = {"event": "failed"}
        if isinstance(error, StoreError | lmdb.Error):
            what = "the store failed" if self._is_open else "the store cannot be opened"
            logger.error("%s: %s", what, error, extra=event)
            return LOST_STORE if self._is_open else NO_STORE
        if isinstance(error, CannotListen):
            logger.error("%s", error.strerror, extra=event)
            return FAILED if error.in_use else USAGE
        if isinstance(error, BadTokenFile | KeyrunError) and not self._is_open:
            logger.error("%s", error, extra=event)
            return USAGE
        logger.error("the application failed", exc_info=error, extra=event)
        return FAILED
