"""`keyrun run`: run a workflow and wait for its result."""

from typing import Any

import click

from keyrun.cli.carrying import Wish, about_the_run, carry_out
from keyrun.cli.target import find, load, workflows_in
from keyrun.cli.troubles import plainly


@click.command("run")
@click.argument("target", metavar="MODULE:WORKFLOW")
@about_the_run
@click.option(
    "--with",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Another module, whose workflows have unfinished runs in the store.",
)
@click.pass_context
@plainly
def command(ctx: click.Context, /, *, target: str, **wished: Any) -> None:
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
    wish = Wish(**wished)
    wish.check()
    module, workflow = find(target)
    modules = [module, *map(load, wish.modules)]
    known = {each for loaded in modules for each in workflows_in(loaded).values()}
    carry_out(ctx, ["keyrun", "run", target], workflow, known, wish)
