"""`keyrun flow`: run and check flows, which are workflows in files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import click

from keyrun import Workflow
from keyrun.cli import documents, options
from keyrun.cli.errors import report_errors
from keyrun.cli.exit_codes import FAILED, OK, USAGE, CommandError
from keyrun.cli.run_command import RunCommandOptions, run_options, run_workflow
from keyrun.cli.screen import note, say, visible
from keyrun.cli.target import load, workflows_in
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
    help="Module with the steps or workflows that the flow calls, or the file of another flow. "
    "Repeat the option for more.",
)


@attrs.frozen
class Library:
    """The functions, by name, and the workflows that flows may call."""

    functions: dict[str, Callable[..., Any]]
    workflows: list[Workflow[Any, Any]]


@click.group("flow")
def command() -> None:
    """Run and check flows: workflows in YAML or JSON files.

    \b
    Examples:
      keyrun flow check order.yaml
      keyrun flow run order.yaml --key alice \\
          --input '{"id": 7}'
    """


@command.command("run", short_help="Run a flow and print its result")
@file
@run_options
@others
@click.pass_context
@report_errors
def run(ctx: click.Context, /, *, file: Path, **given: Any) -> None:
    """Run a flow and print its result on stdout as JSON.

    \b
    Examples:
      keyrun flow run order.yaml --key alice \\
          --input '{"id": 7}'
      keyrun flow run order.yaml --key alice --store state/ \\
          --run-id order-7 --input @order.json --with shop

    The flow can call the steps (@step) of the modules that --with names. The modules are imported
    from the current directory. Everything else works as in `keyrun run`.
    """
    options = RunCommandOptions(**given)
    options.check()
    library = collect(options.modules)
    flow = _load(file, library)
    run_workflow(ctx, ["keyrun", "flow", "run", str(file)], flow, library.workflows, options)


@command.command("check", short_help="Report all errors in flows")
@files
@others
@options.as_json
@click.pass_context
@report_errors
def check(
    ctx: click.Context, *, files: tuple[Path, ...], modules: tuple[str, ...], as_json: bool
) -> None:
    """Report all errors in flows, with their lines. Nothing is run.

    \b
    Examples:
      keyrun flow check order.yaml
      keyrun flow check flows/*.yaml --with shop --json

    A port without an edge is a warning. The exit code is 1 if there is an error, and 0 if there
    are only warnings.
    """
    library = collect(modules)
    code = OK
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
            flow = checked.graph
            counts = [_count(len(flow.nodes), "node"), _count(len(flow.edges), "edge")]
            if checked.warnings:
                counts.append(_count(len(checked.warnings), "warning"))
            note(f"{visible(path)}: flow {visible(flow.name)!r} is valid: {', '.join(counts)}")
    ctx.exit(code)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _print(path: Path, problem: Any, severity: str, as_json: bool) -> None:
    """Print an error or a warning."""
    if as_json:
        where = {"file": str(path), "line": problem.line}
        print(documents.line({**where, "message": problem.message, "severity": severity}))
    else:
        at = "" if problem.line is None else f":{problem.line}"
        mark = "warning: " if severity == "warning" else ""
        say(visible(f"{path}{at}: {mark}{problem.message}"), hang="  ")


def collect(names: Iterable[str]) -> Library:
    """Return what flows may call from modules and files."""
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
            note(visible(line), hang="  ")
        raise CommandError(visible(last), USAGE) from error


def _parse(path: Path, library: Library) -> Any:
    from keyrun.flows.files import check as check_flow

    try:
        return check_flow(path, functions=library.functions, workflows=library.workflows)
    except MissingExtra as error:
        raise CommandError(str(error), USAGE) from error


def _invalid() -> Any:
    from keyrun.flows.files import InvalidFlow

    return InvalidFlow
