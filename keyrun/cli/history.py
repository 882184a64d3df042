"""`keyrun history`: what happened to one run, attempt by attempt."""

import re
from collections.abc import Iterable
from pathlib import Path

import click

from keyrun import Failure
from keyrun.cli import documents, options
from keyrun.cli.compensation import not_compensated
from keyrun.cli.exits import NOT_FOUND, Refusal
from keyrun.cli.lookup import look
from keyrun.cli.table import Column, table
from keyrun.cli.times import duration, local
from keyrun.cli.troubles import plainly
from keyrun.runtime.inspect.history import Happening

_WHERE = re.compile(r"^step '[^']*', attempt \d+ of \d+, after [\d.]+ s: ")

COLUMNS = [
    Column("time", 19),
    Column("event", 14),
    Column("step", 8),
    Column("try", 3, 6),
    Column("took", 7, 5),
    Column("detail", 12, 8),
]


@click.command("history")
@options.store
@click.argument("run_id")
@options.namespace
@options.as_json
@plainly
def command(*, store: Path, run_id: str, namespace: str, as_json: bool) -> None:
    """Tell what happened to a run of STORE, in order, as it was written down.

    \b
    Examples:
      keyrun history state/ order-7
      keyrun history state/ order-7 --json | jq .failure

    Every attempt is there with its error and the delay before the next; --json has the
    tracebacks too. Exits with 1 if there is no such run.
    """
    story = look(store, namespace, lambda reader: reader.history(run_id))
    if not story:
        raise Refusal(f"no run has the id {run_id!r}, or it was forgotten", NOT_FOUND)
    if as_json:
        for happened in story:
            print(documents.line(documents.happening(happened)))
    else:
        show(story)


def show(story: Iterable[Happening]) -> None:
    """A table of what happened."""
    table(
        COLUMNS,
        (
            (
                local(happened.at or None, to_the_second=True),
                happened.event.replace("_", " "),
                happened.step,
                happened.attempt,
                duration(_took(happened)),
                detail(happened),
            )
            for happened in story
        ),
    )


def _took(happened: Happening) -> float | None:
    return None if happened.began_at is None else happened.at - happened.began_at


def detail(happened: Happening) -> str:
    """What there is to say besides the event and the step."""
    parts = []
    if happened.failure is not None:
        parts.append(why(happened.failure))
    elif happened.detail:
        parts.append(happened.detail)
    if happened.delay is not None:
        again = "next attempt in" if happened.event == "attempt_failed" else "for"
        parts.append(f"{again} {duration(happened.delay)}")
    return "; ".join(parts)


def why(failure: Failure) -> str:
    """The reason of a failure, without the step and the attempt that stand beside it."""
    left = not_compensated(failure)
    return (f"{left} not compensated; " if left else "") + _WHERE.sub("", failure.reason)
