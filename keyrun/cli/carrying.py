"""Carrying out one run for a command: the options that such commands share, the store, the result.

The result is on stdout, as JSON; everything else goes to stderr.
"""

import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import attrs
import click
import trio

from keyrun import State, Workflow
from keyrun.cli import documents, options
from keyrun.cli.execution import Order, execute
from keyrun.cli.exits import CANCELLED, FAILED, FINE, HELD, INTERRUPTED, USAGE, Refusal
from keyrun.cli.lookup import check_namespace
from keyrun.cli.screen import say
from keyrun.cli.target import fit_input, plain_result, read_input
from keyrun.cli.troubles import may_run_in
from keyrun.runtime.records.checks import check_key, check_run_id

F = TypeVar("F", bound=Callable[..., Any])

CODES = {
    State.SUCCEEDED: FINE,
    State.FAILED: FAILED,
    State.CANCELLED: CANCELLED,
    State.QUARANTINED: HELD,
    None: INTERRUPTED,
}


@attrs.frozen(kw_only=True)
class Wish:
    """What was asked for on the command line."""

    key: str
    text: str | None
    store: Path | None
    run_id: str | None
    tags: tuple[str, ...]
    headers: tuple[str, ...]
    approve: tuple[str, ...]
    modules: tuple[str, ...]
    namespace: str
    quiet: bool

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded."""
        check_namespace(self.namespace)
        check_key(self.key)
        if self.run_id is not None:
            check_run_id(self.run_id)


def about_the_run(function: F) -> F:
    """The options of commands that run something."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Do not tell how it goes."),
        options.namespace,
        click.option(
            "--approve",
            multiple=True,
            metavar="GATE",
            help="Approve at this gate when the run waits there; may be given again.",
        ),
        click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header."),
        click.option("--tag", "tags", multiple=True, help="A tag of the run; may be given again."),
        click.option(
            "--run-id", metavar="ID", help="The id of the run; the same again is the same run."
        ),
        click.option(
            "--store",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Where the run is kept. Without it, in a directory that is removed at the end.",
        ),
        click.option(
            "--input",
            "text",
            metavar="JSON",
            help="The input; @FILE reads a file, - the standard input.",
        ),
        click.option("--key", required=True, help="The ordering key."),
    ):
        function = option(function)
    return function


def carry_out(
    ctx: click.Context,
    words: Iterable[str],
    workflow: Workflow[Any, Any],
    known: Iterable[Workflow[Any, Any]],
    wish: Wish,
) -> None:
    """Run `workflow`, print its result, and exit as it ended. `words` is the command that was
    given, as far as its target: what to type again after an interruption begins with that."""
    given = read_input(wish.text)

    def again(run_id: str) -> None:
        line = [*words, "--key", wish.key, "--store", str(path), "--run-id", run_id]
        if wish.text is not None:
            line += ["--input", documents.line(given) if wish.text == "-" else wish.text]
        line += [word for gate in wish.approve for word in ("--approve", gate)]
        line += [word for module in wish.modules for word in ("--with", module)]
        line += [] if wish.namespace == "default" else ["--namespace", wish.namespace]
        say(f"interrupted; the run {run_id} is kept, and goes on with:")
        say("  " + shlex.join(line))

    order = Order(
        workflow=workflow,
        known=tuple({*known, workflow}),
        input=fit_input(workflow, given),
        key=wish.key,
        run_id=wish.run_id,
        tags=wish.tags,
        headers=dict(map(_header, wish.headers)),
        namespace=wish.namespace,
        existing=wish.store is not None and may_run_in(wish.store),
        quiet=wish.quiet,
        again=again,
        approve=wish.approve,
    )
    # The runtime logs what the user is told anyhow.
    logging.getLogger("keyrun").addHandler(logging.NullHandler())
    path = wish.store or Path(mkdtemp(prefix="keyrun-"))
    keep = False
    try:
        # Steps may print; what is read from stdout is the result alone.
        with redirect_stdout(sys.stderr):
            ending = trio.run(execute, path, order)
        keep = ending.state is None
    finally:
        if wish.store is None and not keep:
            shutil.rmtree(path, ignore_errors=True)
    if ending.state is None and ending.run_id is not None:
        again(ending.run_id)
    elif ending.state is State.SUCCEEDED:
        print(documents.line(plain_result(workflow, ending.result)))
    elif wish.quiet or ending.state is State.QUARANTINED:
        say(" ".join(f"the run {ending.run_id} is {ending.state}. {ending.reason}".split()))
    ctx.exit(CODES[ending.state])


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refusal(f"a header is NAME=VALUE, got {text!r}", USAGE)
    return name, value
