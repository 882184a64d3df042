"""`keyrun history`: list the events of one run, with every attempt."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress
from keyrun.cli.errors import report_errors, unknown_run
from keyrun.cli.failures import reason_of
from keyrun.cli.reading import read_store
from keyrun.cli.screen import note
from keyrun.cli.table import Column, print_table
from keyrun.cli.times import duration, local
from keyrun.runtime.records.journal_entry import COMPENSATION
from keyrun.status import Happening
from keyrun.storage import PayloadError

Event: TypeAlias = tuple[Happening, Any]
"""An event, and the value that it carries."""

COLUMNS = [
    Column("time", 19),
    Column("event", 14),
    Column("step", 8, id=True),
    Column("attempt", 7, 6),
    Column("took", 7, 5),
    Column("detail", 16, 8, lines=8),
    Column("value", 16, 4),
]


@click.command("history")
@options.store
@click.argument("run_id")
@options.namespace
@options.as_json
@report_errors
def command(*, store: StoreAddress, run_id: str, namespace: str, as_json: bool) -> None:
    """List the events of a run of STORE in the order in which they were stored.

    \b
    Examples:
      keyrun history state/ order-7
      keyrun history state/ order-7 --json | jq .failure

    Every attempt of a step is listed with its error and the delay before the next attempt. "value"
    is the input or the result of the run, the result of a step, or the payload of a signal. --json
    also has the tracebacks. The exit code is 1 if the run does not exist.
    """

    async def ask(reader: Reader) -> list[Event]:
        return list(_with_values(reader, await reader.history(run_id)))

    events = read_store(store, namespace, ask)
    if not events:
        raise unknown_run(run_id, store)
    if as_json:
        for happened, value in events:
            print(documents.line(documents.happening(happened, value)))
    else:
        _print(events)


def _with_values(reader: Reader, history: Iterable[Happening]) -> Iterator[Event]:
    """Yield the events with the values that they carry."""
    unreadable = None
    for happened in history:
        value = None
        if happened.stored is not None:
            try:
                value = reader.value(happened.stored)
            except PayloadError as error:
                unreadable = error
        yield happened, value
    if unreadable is not None:
        note(f"Values were left out that cannot be decoded here: {unreadable}")


def _print(events: Iterable[Event]) -> None:
    print_table(
        COLUMNS,
        (
            (
                local(happened.at or None, to_the_second=True),
                *headline(happened),
                happened.attempt,
                duration(_took(happened)),
                detail(happened),
                None if value is None else documents.line(value),
            )
            for happened, value in events
        ),
    )


def _took(happened: Happening) -> float | None:
    return None if happened.began_at is None else happened.at - happened.began_at


_COMPENSATION = {
    "step_completed": "compensated",
    "attempt_failed": "compensation attempt failed",
    "step_failed": "compensation failed",
    "step_cancelled": "compensation cancelled",
    "interrupted": "compensation interrupted",
}
"""The events of compensations, in words."""
_DELAYS = {
    "attempt_failed": "next attempt in",
    "signal_wanted": "for at most",
    "approval_wanted": "for at most",
}


def headline(happened: Happening) -> tuple[str, str | None]:
    """Return an event in words, and what it is about: the name of a node or step, without the call
    inside of a node, which the event names already."""
    words, step = happened.event.replace("_", " "), happened.step
    if step is None:
        return words, None
    if step.startswith(COMPENSATION):
        words = _COMPENSATION.get(happened.event, words)
        step = step.removeprefix(COMPENSATION)
    outer, _, call = step.rpartition("/")
    return words, outer if outer and call.endswith("()") else step


def detail(happened: Happening) -> str:
    """Return the error, the detail and the delay of an event."""
    parts = []
    if happened.failure is not None:
        parts.append(reason_of(happened.failure))
    elif happened.detail:
        # The gate of a node has the name of the node.
        first, comma, rest = happened.detail.partition(", ")
        parts.append(rest if first == headline(happened)[1] else first + comma + rest)
    if happened.delay is not None:
        parts.append(f"{_DELAYS.get(happened.event, 'for')} {duration(happened.delay)}")
    return "; ".join(part for part in parts if part)
