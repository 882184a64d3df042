"""The commands that operate a store. They are derived from the table of operations: the arguments,
their types and help, and the role come from the entry of the operation."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import click
import trio

from keyrun import RunCancelled, RunQuarantined
from keyrun._errors import KeyrunError
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.arguments import (
    example_of,
    is_positional,
    option_of,
    parameters_of,
    read_arguments,
    sentence,
)
from keyrun.cli.errors import report_errors
from keyrun.cli.exit_codes import CANCELLED, FAILED, QUARANTINED, USAGE, CommandError
from keyrun.cli.operating import opened, takes_values
from keyrun.cli.screen import print_fields, say, visible
from keyrun.cli.target import find_app
from keyrun.control.bulk import OWN, Action
from keyrun.control.operation import Idle, Operation
from keyrun.control.table import OPERATIONS

IN_BULK = get_args(Action)
"""The operations that a command can perform on all runs that match a filter."""

EXAMPLE_WIDTH = 58
"""The longest line of an example. The help indents it by two."""

_IDLE = {
    Idle.YES: (
        "If no process has STORE open, the command opens it as an operator: it runs nothing, and "
        "the next open_runtime() continues."
    ),
    Idle.WITH_APP: (
        "If no process has STORE open, the command requires --app, and opens STORE as an operator: "
        "it runs nothing, and the next open_runtime() continues."
    ),
    Idle.NO: "A process must have STORE open, because the command runs its code.",
}

OPERATION_ID = click.option(
    "--operation-id",
    metavar="ID",
    help="Id that makes a repeat harmless: for an hour, a repeat with this id changes nothing.",
)
APP = click.option(
    "--app",
    metavar="MODULE:APP",
    help=(
        "The keyrun.App of the store, such as shop:app, for a store that no process has open. Its "
        "workflows, limits and transform are used."
    ),
)
BULK_OPTIONS = (
    options.state("Only runs"),
    options.run_filters,
    options.group,
    click.option("--preview", is_flag=True, help="Show what would be changed, and change nothing."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask before runs are changed."),
)


def commands() -> dict[str, Operation]:
    """Return the operations that have a command, by the name of the command."""
    return {each.command.name: each for each in OPERATIONS.values() if each.command is not None}


def command_of(name: str) -> click.Command:
    """Return the command for an operation."""
    operation = commands()[name]
    in_bulk = operation.name in IN_BULK
    found = click.Command(
        name.rpartition(" ")[2],
        callback=report_errors(_one_or_many(operation) if in_bulk else _one(operation)),
        help=help_of(operation),
    )
    options.store_argument(found)
    if in_bulk:
        # Whether the first of them is there depends on their number.
        target, *rest = _positional(operation)
        metavar = " ".join([f"[{target.upper()}]", *map(str.upper, rest)])
        found.params.append(click.Argument(["words"], nargs=-1, metavar=metavar))
        found.params += [
            each for each in parameters_of(operation) if isinstance(each, click.Option)
        ]
    else:
        found.params += parameters_of(operation)
    for option in (
        *(BULK_OPTIONS if in_bulk else ()),
        *([APP] if takes_values(operation) else []),
        *([OPERATION_ID] if operation.writes else []),
        options.token_file,
        options.namespace,
        options.as_json,
    ):
        option(found)
    return found


def _one(operation: Operation) -> Callable[..., None]:
    """Return the function of a command that performs an operation once."""

    def callback(
        *,
        store: StoreAddress,
        namespace: str,
        as_json: bool,
        operation_id: str | None = None,
        app: str | None = None,
        **given: Any,
    ) -> None:
        perform_one(operation, store, given, namespace, as_json, operation_id, app)

    return callback


def _positional(operation: Operation) -> list[str]:
    """Return the arguments that have no option. The first is the run or the key to change."""
    return [each.name for each in operation.parameters.values() if is_positional(each)]


def _one_or_many(operation: Operation) -> Callable[..., None]:
    """Return the function of a command that changes one run, or all that match."""

    def callback(
        *,
        store: StoreAddress,
        words: tuple[str, ...],
        yes: bool,
        preview: bool,
        namespace: str,
        as_json: bool,
        operation_id: str | None,
        app: str | None = None,
        **options: Any,
    ) -> None:
        names = _positional(operation)
        own = {name: options.pop(name) for name in operation.parameters if name in options}
        filters = {name: each for name, each in options.items() if each not in (None, ())}
        if len(words) > len(names):
            raise click.UsageError(f"Got unexpected extra argument ({words[len(names)]})")
        if len(words) < len(names) - 1:
            raise click.UsageError(f"Missing argument '{names[len(words) + 1].upper()}'.")
        if len(words) == len(names):
            if filters or yes or preview:
                raise click.UsageError(f"give a {_called(names[0])} or filters, and not both")
            given = {**own, **dict(zip(names, words, strict=True))}
            perform_one(operation, store, given, namespace, as_json, operation_id, app)
            return
        from keyrun.cli.bulk import BulkCommand

        with reported():
            given = {**own, **dict(zip(names[1:], words, strict=True))}
            for name in read_arguments(operation, given):
                if name not in OWN:
                    option = option_of(operation.parameters[name])
                    raise click.UsageError(f"{option} requires a {_called(names[0])}")
            bulk = BulkCommand(
                operation=operation,
                store=store,
                namespace=namespace,
                own=given,
                filters=filters,
                operation_id=operation_id,
                as_json=as_json,
                app=app,
            )
            bulk.run(yes=yes, preview=preview)

    return callback


def _called(name: str) -> str:
    return name.replace("_", " ")


def help_of(operation: Operation) -> str:
    """Return the help of the command for an operation."""
    command = operation.command
    assert command is not None
    examples = [["state/", *example_of(operation)]]
    if operation.name in IN_BULK:
        _, *rest = example_of(operation)
        examples.append(["state/", *rest, "--workflow", "checkout", "--since", "2h"])
    shown = "\n".join(_example(f"  keyrun {command.name}", words) for words in examples)
    role = f"Over HTTP, the command requires a token with the role {operation.role}."
    abouts = [
        f"{each.name.upper()}: {sentence(each.about)}"
        for each in operation.parameters.values()
        if is_positional(each) and each.about
    ]
    target = next(iter(_positional(operation)), "")
    changed = "runs" if target == "run_id" else "keys of runs"
    bulk = (
        f"Without {target.upper()}, all {changed} that match the filters are changed. The command "
        "shows some of the runs with their number, and asks before it changes them."
    )
    parts = [
        f"{command.summary}.",
        f"\b\nExamples:\n{shown}",
        command.about,
        " ".join(abouts),
        bulk if operation.name in IN_BULK else "",
        f"{_IDLE[operation.idle]} {role}",
    ]
    return "\n\n".join(part for part in parts if part)


def _example(text: str, words: list[str]) -> str:
    """Return an example in lines that a narrow terminal can show."""
    line = text
    for word in words:
        if len(f"{line} {word} \\") > EXAMPLE_WIDTH:
            text, line = f"{text} \\\n     ", "     "
        text, line = f"{text} {word}", f"{line} {word}"
    return text


def perform_one(
    operation: Operation,
    store: StoreAddress,
    given: Mapping[str, Any],
    namespace: str,
    as_json: bool,
    operation_id: str | None,
    app: str | None = None,
) -> None:
    """Perform an operation and print its answer."""
    with reported():
        arguments = read_arguments(operation, given)
        answer = perform(operation, store, arguments, namespace, operation_id, app)
    _print(operation, arguments, answer, as_json)


def perform(
    operation: Operation,
    store: StoreAddress,
    arguments: dict[str, Any],
    namespace: str,
    operation_id: str | None = None,
    app: str | None = None,
) -> Any:
    """Perform an operation on a store, and return its answer. `app` names the application."""
    found = None if app is None else find_app(app)

    async def main() -> Any:
        async with opened(store, namespace, found) as performer:
            answer = await performer.perform(operation, arguments, operation_id)
            if answer is False and "run_id" in arguments:
                # The answer is the same for a run that does not exist.
                await performer.perform(OPERATIONS["status"], {"run_id": arguments["run_id"]})
            return answer

    return trio.run(main)


@contextmanager
def reported() -> Iterator[None]:
    """Report an argument that an operation refuses, and the end of a run, with their exit codes."""
    try:
        yield
    except (RunCancelled, RunQuarantined) as error:
        code = CANCELLED if isinstance(error, RunCancelled) else QUARANTINED
        raise CommandError(str(error), code) from error
    except (KeyrunError, OSError, click.ClickException, click.exceptions.Exit):
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise CommandError(str(error), USAGE) from error
    except RuntimeError as error:
        raise CommandError(str(error), FAILED) from error


def _print(operation: Operation, arguments: Mapping[str, Any], answer: Any, as_json: bool) -> None:
    command = operation.command
    assert command is not None
    written = operation.write_json(answer)
    if as_json:
        print(documents.line(written if operation.answers_object else {"result": written}))
    elif answer is False:
        say(_sentence(command.unchanged, arguments, answer))
    elif command.done:
        say(_sentence(command.done, arguments, answer))
    elif operation.answers_object:
        print_fields((name.replace("_", " "), _shown(each)) for name, each in written.items())
    else:
        print(documents.line(written))


def _shown(value: Any) -> object:
    return documents.line(value) if isinstance(value, dict | list) else value


def _sentence(text: str, arguments: Mapping[str, Any], answer: Any) -> str:
    return visible(text.format(**arguments, answer=answer))
