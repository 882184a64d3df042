"""`keyrun flow`: run and check flows, which are workflows in files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import click

from keyrun import Workflow
from keyrun.cli import documents, options
from keyrun.cli.carrying import Wish, about_the_run, carry_out
from keyrun.cli.exits import FAILED, FINE, USAGE, Refusal
from keyrun.cli.screen import say, visible
from keyrun.cli.target import load, workflows_in
from keyrun.cli.troubles import plainly
from keyrun.errors import MissingExtra
from keyrun.runtime.definitions.step import StepFunction

_SUFFIXES = (".yaml", ".yml", ".json")

file = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
files = click.argument(
    "files", type=click.Path(path_type=Path), metavar="FILE...", nargs=-1, required=True
)
others = click.option(
    "--with",
    "modules",
    multiple=True,
    metavar="MODULE|FILE",
    help="A module with the steps that the flow calls, or with workflows; or another flow.",
)


@attrs.frozen
class Library:
    """What flows may use: functions by name, and workflows."""

    functions: dict[str, Callable[..., Any]]
    workflows: list[Workflow[Any, Any]]


@click.group("flow")
def command() -> None:
    """Run and check flows: workflows that are written as files and need no Python.

    \b
    Examples:
      keyrun flow check order.yaml
      keyrun flow run order.yaml --key alice \\
          --input '{"id": 7}'
    """


@command.command("run", short_help="Run a flow, print its result")
@file
@about_the_run
@others
@click.pass_context
@plainly
def run(ctx: click.Context, /, *, file: Path, **wished: Any) -> None:
    """Run a flow and print its result as JSON; everything else goes to stderr.

    \b
    Examples:
      keyrun flow run order.yaml --key alice \\
          --input '{"id": 7}'
      keyrun flow run order.yaml --key alice --store state/ \\
          --run-id order-7 --input @order.json --with shop

    Functions that the flow calls are the steps (@step) of the modules that --with names, which
    are imported from the current directory. All else is as with `keyrun run`.
    """
    wish = Wish(**wished)
    wish.check()
    library = collect(wish.modules)
    flow = _load(file, library)
    carry_out(ctx, ["keyrun", "flow", "run", str(file)], flow, library.workflows, wish)


@command.command("check", short_help="Say what is wrong with a flow")
@files
@others
@options.as_json
@click.pass_context
@plainly
def check(
    ctx: click.Context, *, files: tuple[Path, ...], modules: tuple[str, ...], as_json: bool
) -> None:
    """Say all that is wrong with flows, each with its line. Nothing is run.

    A port that no edge takes is a warning.

    \b
    Examples:
      keyrun flow check order.yaml
      keyrun flow check flows/*.yaml --with shop --json

    Exits with 0 if there are no errors and with 1 if there are. Warnings do not count.
    """
    library = collect(modules)
    code = FINE
    for path in files:
        try:
            checked = _parse(path, library)
        except _invalid() as error:
            code = FAILED
            for problem in error.problems:
                _print(path, problem, "error", as_json)
            continue
        for problem in checked.warnings:
            _print(path, problem, "warning", as_json)
        if not as_json:
            flow, warnings = checked.graph, len(checked.warnings)
            counts = f"{len(flow.nodes)} nodes and {len(flow.edges)} edges"
            more = f", and {warnings} warning{'s'[: warnings > 1]}" if warnings else ""
            say(f"{visible(path)}: the flow {visible(flow.name)!r} is fine, with {counts}{more}")
    ctx.exit(code)


def _print(path: Path, problem: Any, severity: str, as_json: bool) -> None:
    """Print a problem as one line."""
    if as_json:
        where = {"file": str(path), "line": problem.line}
        print(documents.line({**where, "message": problem.message, "severity": severity}))
    else:
        at = "" if problem.line is None else f":{problem.line}"
        mark = "warning: " if severity == "warning" else ""
        print(visible(f"{path}{at}: {mark}{problem.message}"))


def collect(names: Iterable[str]) -> Library:
    """What is in modules and files."""
    library = Library({}, [])
    for name in names:
        if name.lower().endswith(_SUFFIXES):
            library.workflows.append(_load(Path(name), library))
            continue
        module = load(name)
        steps = {at: each for at, each in vars(module).items() if isinstance(each, StepFunction)}
        library.functions.update(steps)
        library.workflows.extend(workflows_in(module).values())
    return library


def _load(path: Path, library: Library) -> Any:
    try:
        return _parse(path, library).graph
    except _invalid() as error:
        *before, last = error.lines()
        for line in before:
            say(visible(line))
        raise Refusal(visible(last), USAGE) from error


def _parse(path: Path, library: Library) -> Any:
    from keyrun.flows.files import check as check_flow

    try:
        return check_flow(path, functions=library.functions, workflows=library.workflows)
    except MissingExtra as error:
        raise Refusal(str(error), USAGE) from error


def _invalid() -> Any:
    from keyrun.flows.files import InvalidFlow

    return InvalidFlow
