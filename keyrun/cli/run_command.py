"""Run one workflow from the shell: the part that `keyrun run` and `keyrun flow run` share.

The result goes to stdout as JSON. Everything else goes to stderr.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import attrs
import click
import trio

from keyrun import State, Workflow
from keyrun.cli import documents, options
from keyrun.cli.errors import has_store
from keyrun.cli.execution import Outcome, RunRequest, execute
from keyrun.cli.exit_codes import (
    CANCELLED,
    FAILED,
    INTERRUPTED,
    OK,
    QUARANTINED,
    USAGE,
    CommandError,
)
from keyrun.cli.failures import tracebacks
from keyrun.cli.reading import check_namespace
from keyrun.cli.screen import Screen, columns, note, print_block, shell_word, visible
from keyrun.cli.target import convert_input, parse_json, plain_result, read_input
from keyrun.runtime.records.checks import check_key, check_run_id
from keyrun.runtime.waiting.receive import check_channel

F = TypeVar("F", bound=Callable[..., Any])

_EXIT_CODES = {
    State.SUCCEEDED: OK,
    State.FAILED: FAILED,
    State.CANCELLED: CANCELLED,
    State.QUARANTINED: QUARANTINED,
    None: INTERRUPTED,
}


@attrs.frozen(kw_only=True)
class RunCommandOptions:
    """The options of a command that runs a workflow."""

    key: str
    text: str | None
    store: Path | None
    run_id: str | None
    tags: tuple[str, ...]
    headers: tuple[str, ...]
    approve: tuple[str, ...]
    signals: tuple[str, ...]
    modules: tuple[str, ...]
    namespace: str
    quiet: bool

    def check(self) -> None:
        """Raise if an option is invalid. This is called before any module is imported."""
        check_namespace(self.namespace)
        check_key(self.key)
        if self.run_id is not None:
            check_run_id(self.run_id)


def run_options(function: F) -> F:
    """Add the options of `RunOptions`, except `modules`."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Do not print progress."),
        options.namespace,
        click.option(
            "--approve",
            multiple=True,
            metavar="GATE",
            help="Approve this gate when the run waits there. Repeat the option for more gates.",
        ),
        click.option(
            "--signal",
            "signals",
            multiple=True,
            metavar="NAME[=JSON]",
            help="Send this signal to the run, with a payload. Repeat the option for more signals.",
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME=VALUE",
            help="Header of the run. Repeat the option for more headers.",
        ),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="TAG",
            help="Tag of the run. Repeat the option for more tags.",
        ),
        click.option(
            "--run-id",
            metavar="ID",
            help=(
                "Id of the run. If the store has a run with this id, that run is resumed, or its "
                "stored result is printed.  [default: a new id]"
            ),
        ),
        click.option(
            "--store",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Directory of the store.  [default: a temporary store, removed at the end]",
        ),
        click.option(
            "--input",
            "text",
            metavar="JSON",
            help="Input of the workflow as JSON. @FILE reads a file, and - reads stdin.",
        ),
        click.option("--key", required=True, metavar="KEY", help="Ordering key of the run."),
    ):
        function = option(function)
    return function


def run_workflow(
    ctx: click.Context,
    command: Iterable[str],
    workflow: Workflow[Any, Any],
    known: Iterable[Workflow[Any, Any]],
    given: RunCommandOptions,
) -> None:
    """Run `workflow`, print its result, and exit with the code for its outcome.

    `command` is the command up to its target. It begins the command that resumes an interrupted
    run.
    """
    value = read_input(given.text)

    def print_resume(run_id: str) -> None:
        words = [*command, "--key", given.key, "--store", str(path), "--run-id", run_id]
        if given.text is not None:
            words += ["--input", documents.line(value) if given.text == "-" else given.text]
        words += [word for gate in given.approve for word in ("--approve", gate)]
        words += [word for signal in given.signals for word in ("--signal", signal)]
        words += [word for module in given.modules for word in ("--with", module)]
        words += [] if given.namespace == "default" else ["--namespace", given.namespace]
        note(f"Interrupted. The run {run_id} is stored. To resume it:")
        print_command(words)

    request = RunRequest(
        workflow=workflow,
        known=tuple({*known, workflow}),
        input=convert_input(workflow, value),
        key=given.key,
        run_id=given.run_id,
        tags=given.tags,
        headers=dict(map(_header, given.headers)),
        namespace=given.namespace,
        store_exists=given.store is not None and has_store(given.store),
        quiet=given.quiet,
        print_resume=print_resume,
        approve=given.approve,
        signals=tuple(map(_signal, given.signals)),
    )
    logger, handler = logging.getLogger("keyrun"), _InternalErrors()
    logger.addHandler(handler)
    path = given.store or Path(mkdtemp(prefix="keyrun-"))
    keep = False
    try:
        # Steps may print. Stdout is for the result alone.
        with redirect_stdout(sys.stderr):
            outcome = trio.run(execute, path, request)
        keep = outcome.state in (None, State.QUARANTINED)
    finally:
        logger.removeHandler(handler)
        if given.store is None and not keep:
            shutil.rmtree(path, ignore_errors=True)
    if outcome.state is None and outcome.run_id is not None:
        print_resume(outcome.run_id)
    elif outcome.state is State.SUCCEEDED:
        print(documents.line(plain_result(workflow, outcome.result)))
    else:
        _print_failure(outcome, quiet=given.quiet)
        if outcome.state is State.QUARANTINED and given.store is None:
            note(f"The store is kept in {path}")
    ctx.exit(_EXIT_CODES[outcome.state])


class _InternalErrors(logging.Handler):
    """Print the log records that have a traceback. Progress and failures are printed anyhow."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.levelno >= logging.ERROR:
            print_block(self.format(record), sys.stderr)


def _print_failure(outcome: Outcome, *, quiet: bool) -> None:
    """Print why a run did not succeed. Without `quiet` the progress has said it already."""
    for text in tracebacks(outcome.failure):
        print_block(text, sys.stderr)
    if quiet or outcome.state is State.QUARANTINED:
        state = {State.FAILED: "failed", State.CANCELLED: "was cancelled"}.get(
            outcome.state or State.QUARANTINED, "is quarantined"
        )
        reason = visible(" ".join(outcome.reason.split()))
        note(f"Run {outcome.run_id} {state}" + (f": {reason}" if reason else "."))


def print_command(words: Sequence[str]) -> None:
    """Print a command to paste. On a narrow screen its lines end with a backslash."""
    screen = Screen.of(sys.stderr)
    line = " "
    for word in map(shell_word, words):
        if screen.limited and line.strip() and columns(f"{line} {word} \\") > screen.width:
            print(f"{line} \\", file=sys.stderr)
            line = "     "
        line += f" {word}"
    print(line, file=sys.stderr, flush=True)


def _signal(text: str) -> tuple[str, Any]:
    name, equals, payload = text.partition("=")
    try:
        check_channel(name)
    except ValueError as error:
        reason = f"--signal requires NAME or NAME=JSON, got {text!r}: {error}"
        raise CommandError(reason, USAGE) from error
    hint = f"""; JSON text has double quotes: --signal '{name}="text"'"""
    return name, parse_json(payload, f"the payload of --signal {name}", hint) if equals else None


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--header requires NAME=VALUE, got {text!r}", USAGE)
    return name, value
