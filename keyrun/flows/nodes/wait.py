"""The `wait` node: waits for a number of seconds, or until a time."""

from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

from keyrun.flows.errors import NodeFailed
from keyrun.flows.scope import Given, scope
from keyrun.flows.templates import as_number, as_text, has_template, renderable
from keyrun.flows.times import timestamp_of
from keyrun.graphs import durable
from keyrun.runtime.execution.context import Context

LONGEST = 10_000_000_000
"""Seconds of a wait: about 317 years."""


def wait(
    *, seconds: float | str | None = None, until: str | None = None, where: str = "wait"
) -> Callable[[Context, Given], Coroutine[Any, Any, Any]]:
    """Return a node that waits. Its output is the output that it received.

    A wait may take weeks: it survives restarts, and the run leaves memory while it waits.

    - `seconds`: the number of seconds, or a template that gives a number. They count from the time
      when the run reaches the node.
    - `until`: the time at which the wait ends, with a time zone, as in `"2026-12-24T18:00:00Z"`, or
      a template that gives such a text. A wait until a time in the past ends at once.
    - `where`: the name of the node in errors.
    """
    if (seconds is None) is (until is None):
        given = "none" if until is None else "both"
        raise ValueError(f"requires either 'seconds' or 'until', got {given}")
    if until is not None and not has_template(until):
        timestamp_of(until)
    if seconds is not None and not isinstance(seconds, str):
        _checked(seconds)
    field = "seconds" if until is None else "until"
    template = renderable(seconds if until is None else until, f"{where}.{field}")

    @durable
    async def wait(ctx: Context, given: Given) -> Any:
        value = template.render(scope(given, ctx=ctx))
        try:
            if until is None:
                rest = _checked(as_number(value, f"{where}.seconds"))
            else:
                end = timestamp_of(as_text(value, f"{where}.until"))
                # The first pass decides how long the wait is. Later passes take the stored timer.
                rest = max(0.0, end - ctx.branch.run.partition.wall())
        except ValueError as error:
            raise NodeFailed(f"{where}.{field}: {error}") from error
        await ctx.sleep(rest)
        return given.output

    return wait


def _checked(seconds: float | Decimal) -> float:
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"a wait takes from 0 to {LONGEST:,} seconds, got {seconds}")
    return float(seconds)
