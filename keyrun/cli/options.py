"""The arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from keyrun import State
from keyrun.cli.addresses import StoreParameter, keep_token_file
from keyrun.cli.times import parse

F = TypeVar("F", bound=Callable[..., Any])


class TimeParameter(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """A point in time, given as an age or in ISO 8601."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return seconds since the epoch."""
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


directory = click.argument("store", type=click.Path(path_type=Path), metavar="STORE")
"""A store that is used as a directory of files."""


store_argument = click.argument("store", type=StoreParameter(), metavar="STORE")
token_file = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    expose_value=False,
    callback=keep_token_file,
    help="File whose first word is the token for an address. Default: KEYRUN_TOKEN.",
)


def store(function: F) -> F:
    """Add the argument for a store, and the option for the token of its process."""
    return store_argument(token_file(function))


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
namespace = click.option(
    "--namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Namespace inside the store.",
)
oldest_first = click.option(
    "--oldest-first", is_flag=True, help="Sort by submission, the oldest run first."
)


def state(what: str) -> Callable[[F], F]:
    """Return the option that filters by state."""
    return click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([str(state) for state in State]),
        metavar="STATE",
        help=f"{what} in this state: {', '.join(State)}. Repeat the option for more states.",
    )


group = click.option("--group", metavar="ID", help="Only the members of this group.")


since = click.option(
    "--since",
    type=TimeParameter(),
    metavar="TIME",
    help=(
        "Only what was submitted or done at or after this time: an age such as 90s, 15m, 2h or 7d, "
        "or a date such as 2026-01-31T14:00."
    ),
)
until = click.option(
    "--until",
    type=TimeParameter(),
    metavar="TIME",
    help="Only what was submitted or done before this time.",
)


def run_filters(function: F) -> F:
    """Add the filters of listings of runs."""
    for option in (
        until,
        since,
        click.option("--tag", metavar="TAG", help="Only runs with this tag."),
        click.option(
            "--error",
            metavar="TYPE",
            help="Only runs that failed with this type of exception, for example ValueError.",
        ),
        click.option(
            "--step", metavar="NAME", help="Only runs that are at this step, or failed there."
        ),
        click.option(
            "--version",
            type=click.IntRange(min=1),
            metavar="N",
            help="Only runs of this version of their workflow.",
        ),
        click.option("--workflow", metavar="NAME", help="Only runs of this workflow."),
        click.option("--key", metavar="KEY", help="Only runs with this key."),
    ):
        function = option(function)
    return function


limit = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum number of rows; 0 for all.",
)
cursor = click.option(
    "--cursor", metavar="TEXT", help="Start at this place, which the previous page has printed."
)


def paging(what: str, metavar: str) -> Callable[[F], F]:
    """Return the options that select a page of a listing."""

    def decorate(function: F) -> F:
        after = click.option(
            "--after",
            metavar=metavar,
            help=f"Start after this {what}, the last one on the previous page.",
        )
        return limit(after(function))

    return decorate
