"""`keyrun run`: run a workflow and print its result."""

from typing import Any

import click

from keyrun.cli.errors import report_errors
from keyrun.cli.run_command import RunCommandOptions, run_options, run_workflow
from keyrun.cli.target import find, load, workflows_in


@click.command("run")
@click.argument("target", metavar="MODULE:WORKFLOW")
@run_options
@click.option(
    "--with",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Module with the workflows of other unfinished runs in the store. Repeat the option for "
    "more modules.",
)
@click.pass_context
@report_errors
def command(ctx: click.Context, /, *, target: str, **given: Any) -> None:
    """Run a workflow and print its result on stdout as JSON.

    \b
    Examples:
      keyrun run shop:checkout --key alice --input '{"id": 7}'
      keyrun run shop:checkout --key alice --store state/ \\
          --run-id order-7 --input @order.json

    The module is imported from the current directory. Progress, the output of steps and
    tracebacks go to stderr.

    If you repeat the command with the same --store and --run-id, the run resumes where it
    stopped, or its stored result is printed. Ctrl-C stops the command when the running steps have
    finished. A second Ctrl-C stops it at once. Nothing that is committed is lost.

    Other unfinished runs in the store resume while the command runs.

    \b
    Exit codes:
      0    the run succeeded
      1    the run failed
      2    invalid option, module, workflow or input
      3    the run was cancelled
      4    the store cannot be opened
      5    the run is quarantined
      130  interrupted
    """
    options = RunCommandOptions(**given)
    options.check()
    module, workflow = find(target)
    modules = [module, *map(load, options.modules)]
    known = {each for loaded in modules for each in workflows_in(loaded).values()}
    run_workflow(ctx, ["keyrun", "run", target], workflow, known, options)
