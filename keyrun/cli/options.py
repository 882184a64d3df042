"""Arguments and options that commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from keyrun import State
from keyrun.cli.times import parse

F = TypeVar("F", bound=Callable[..., Any])


class Time(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """A point in time: so long ago, or ISO 8601."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Seconds since the epoch."""
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


store = click.argument("store", type=click.Path(path_type=Path), metavar="STORE")
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
namespace = click.option(
    "--namespace", default="default", show_default=True, help="Which runtime's part of the store."
)
state = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in State]),
    metavar="STATE",
    help=f"Only those in this state: {', '.join(State)}. May be given again for another.",
)


def about_runs(function: F) -> F:
    """The filters of listings of runs."""
    for option in (
        click.option(
            "--until", type=Time(), metavar="TIME", help="Only those submitted before then."
        ),
        click.option(
            "--since",
            type=Time(),
            metavar="TIME",
            help="Only those submitted since: 90s, 15m, 2h or 7d ago, or 2026-01-31T14:00.",
        ),
        click.option("--tag", help="Only those with this tag."),
        click.option("--workflow", help="Only those of this workflow."),
        click.option("--key", help="Only those of this ordering key."),
    ):
        function = option(function)
    return function


def paging(what: str) -> Callable[[F], F]:
    """How much of a listing to show, and from where."""

    def decorate(function: F) -> F:
        after = click.option(
            "--after", metavar=what, help="Go on after this one, the last that you have."
        )
        limit = click.option(
            "--limit",
            type=click.IntRange(min=0),
            default=100,
            show_default=True,
            help="At most so many; 0 for all.",
        )
        return limit(after(function))

    return decorate
