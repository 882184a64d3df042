"""`keyrun run`: run a workflow and wait for its result."""

import logging
import shlex
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import mkdtemp

import click
import trio

from keyrun.cli import documents, options
from keyrun.cli.execution import Order, execute
from keyrun.cli.exits import (
    CANCELLED,
    FAILED,
    FINE,
    HELD,
    INTERRUPTED,
    USAGE,
    Refusal,
    may_run_in,
    plainly,
)
from keyrun.cli.lookup import check_namespace
from keyrun.cli.screen import say
from keyrun.cli.target import find, fit_input, load, plain_result, read_input, workflows_in
from keyrun.runtime import State
from keyrun.runtime.admission import check_key, check_run_id

CODES = {
    State.SUCCEEDED: FINE,
    State.FAILED: FAILED,
    State.CANCELLED: CANCELLED,
    State.QUARANTINED: HELD,
    None: INTERRUPTED,
}


@click.command("run", short_help="Run a workflow, print its result")
@click.argument("target", metavar="MODULE:WORKFLOW")
@click.option("--key", required=True, help="The ordering key.")
@click.option(
    "--input", "text", metavar="JSON", help="The input; @FILE reads a file, - the standard input."
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the run is kept. Without it, in a directory that is removed at the end.",
)
@click.option("--run-id", metavar="ID", help="The id of the run; the same again is the same run.")
@click.option("--tag", "tags", multiple=True, help="A tag of the run; may be given again.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header.")
@click.option(
    "--with",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Another module, whose workflows have unfinished runs in the store.",
)
@options.namespace
@click.option("-q", "--quiet", is_flag=True, help="Do not tell how it goes.")
@click.pass_context
@plainly
def command(
    ctx: click.Context,
    *,
    target: str,
    key: str,
    text: str | None,
    store: Path | None,
    run_id: str | None,
    tags: tuple[str, ...],
    headers: tuple[str, ...],
    modules: tuple[str, ...],
    namespace: str,
    quiet: bool,
) -> None:
    """Run a workflow and print its result as JSON; everything else goes to stderr.

    \b
    Examples:
      keyrun run shop:checkout --key alice --input '{"id": 7}'
      keyrun run shop:checkout --key alice --store state/ \\
          --run-id order-7 --input @order.json

    The module is imported from the current directory. Run it again with the same --store and
    --run-id, and it goes on where it stopped, or prints the result that is stored. Ctrl-C lets
    the running step finish and stops; a second one stops at once. Nothing is lost either way.

    Unfinished runs that are in the store go on too, for as long as this one takes.

    Exits with 0 if the run succeeded, 1 if it failed, 3 if it was cancelled, 4 if the store
    cannot be opened, 5 if the run is quarantined, 130 if it was interrupted.
    """
    check_namespace(namespace)
    check_key(key)
    if run_id is not None:
        check_run_id(run_id)

    def again(run_id: str) -> None:
        words = ["keyrun", "run", target, "--key", key, "--store", str(path), "--run-id", run_id]
        words += [] if text is None else ["--input", documents.line(given) if text == "-" else text]
        words += [word for module in modules for word in ("--with", module)]
        words += [] if namespace == "default" else ["--namespace", namespace]
        say(f"interrupted; the run {run_id} is kept, and goes on with:")
        say("  " + shlex.join(words))

    module, workflow = find(target)
    given = read_input(text)
    others = [module, *map(load, modules)]
    known = {each for loaded in others for each in workflows_in(loaded).values()} | {workflow}
    order = Order(
        workflow=workflow,
        known=tuple(known),
        input=fit_input(workflow, given),
        key=key,
        run_id=run_id,
        tags=tags,
        headers=dict(map(_header, headers)),
        namespace=namespace,
        existing=store is not None and may_run_in(store),
        quiet=quiet,
        again=again,
    )
    # The runtime logs what the user is told anyhow.
    logging.getLogger("keyrun").addHandler(logging.NullHandler())
    path = store or Path(mkdtemp(prefix="keyrun-"))
    keep = False
    try:
        # Steps may print; what is read from stdout is the result alone.
        with redirect_stdout(sys.stderr):
            ending = trio.run(execute, path, order)
        keep = ending.state is None
    finally:
        if store is None and not keep:
            shutil.rmtree(path, ignore_errors=True)
    if ending.state is None and ending.run_id is not None:
        again(ending.run_id)
    elif ending.state is State.SUCCEEDED:
        print(documents.line(plain_result(workflow, ending.result)))
    elif quiet or ending.state is State.QUARANTINED:
        say(" ".join(f"the run {ending.run_id} is {ending.state}. {ending.reason}".split()))
    ctx.exit(CODES[ending.state])


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refusal(f"a header is NAME=VALUE, got {text!r}", USAGE)
    return name, value
