"""The events and log lines of a flow read as plain English."""

import logging

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, NodeInput, PermanentError, RunFailed, TransientError, workflow
from keyrun.cli.execution import progress_line
from keyrun.flows import parse
from keyrun.testing import open_test_runtime

FLOW = """
name: order
nodes:
  charge:
    kind: call
    function: charge
    retry: {delay: 5, jitter: 0}
    compensate: refund
  nap: {kind: wait, seconds: 90}
  review: {kind: approval, timeout: 3600}
  paid: {kind: signal, name: payment, timeout: 60}
  parcel: {kind: workflow, workflow: parcel}
  late: {kind: signal, name: late, timeout: 30}
  remind: {kind: branch, when: "true"}
  ship: {kind: call, function: ship}
  refund: {kind: call, function: refund}
edges:
  - {from: charge, to: nap}
  - {from: nap, to: review}
  - {from: review, to: paid}
  - {from: paid, to: parcel}
  - {from: parcel, to: late}
  - {from: late, to: remind, port: timeout}
  - {from: remind, to: ship, port: then}
"""
STOP = """
name: stop
nodes:
  gate: {kind: approval, timeout: 60}
  stop: {kind: fail, reason: "{{ error.kind }}"}
edges:
  - {from: gate, to: stop, on: fail}
"""
UNDECIDED = """
name: undecided
nodes:
  gate: {kind: approval, timeout: 60}
  paid: {kind: signal, name: paid, timeout: 60}
"""


@workflow
async def parcel(ctx: Context) -> int:
    await ctx.sleep(2)
    return 1


async def ship(given: NodeInput) -> None:
    raise PermanentError("sold out")


async def refund(given: NodeInput) -> None:
    """Does nothing."""


async def run_lines(text: str) -> list[str]:
    """Return what `keyrun run` prints about a run, without the times."""
    failures = [TransientError("busy")]

    async def charge(given: NodeInput) -> None:
        if failures:
            raise failures.pop()

    flow = parse(text, functions=[charge, ship, refund], workflows=[parcel])
    async with open_test_runtime(workflows=[flow, parcel], evict_after=1) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        if flow.name == "order":
            await trio.sleep(100)
            await runtime.approve("r", "review", by="Ann", comment="fine")
            await trio.sleep(10)
            await runtime.signal("r", "payment", {"amount": 5})
        with pytest.raises(RunFailed):
            await run.result()
        history = await runtime.history("r")
    lines = [progress_line(each).partition(" ")[2] for each in history]
    return [line.removesuffix(" in 0 ms") for line in lines]


async def test_each_line_of_a_run_says_what_happened_to_which_node(
    autojump_clock: MockClock,
) -> None:
    assert await run_lines(FLOW) == [
        "submitted",
        "started",
        "attempt failed charge in 0 ms: TransientError: busy; next attempt in 5.0 s",
        "step completed charge (attempt 2)",
        "compensation registered charge",
        "timer set nap: for 1m 30s",
        "timer fired nap",
        "node completed nap",
        "approval wanted review: for at most 1h",
        "approved review: by Ann: fine",
        "node completed review: by the port 'approved'",
        "signal wanted paid: payment; for at most 1m",
        "signal received paid: payment",
        "node completed paid: by the port 'received'",
        "timer set parcel/child: for 2.0 s",
        "timer fired parcel/child",
        "node completed parcel",
        "signal wanted late: for at most 30.0 s",
        "signal timed out late",
        "node completed late: by the port 'timeout'",
        "step completed remind",
        "step failed ship in 0 ms: PermanentError: sold out",
        "graph failed: no edge takes the failure of ship",
        "compensating: PermanentError: sold out",
        "compensated charge",
        "failed: PermanentError: sold out",
    ]


async def test_the_node_that_ends_the_run_is_named(autojump_clock: MockClock) -> None:
    assert await run_lines(STOP) == [
        "submitted",
        "started",
        "approval wanted gate: for at most 1m",
        "approval timed out gate",
        "node failed gate: no decision at the gate 'gate' within 60 s",
        "node failed stop: step_timeout",
        "failed: step_timeout",
    ]


async def test_all_nodes_that_no_edge_takes_are_named(autojump_clock: MockClock) -> None:
    assert "graph failed: no edge takes the failure of gate, paid" in await run_lines(UNDECIDED)


async def test_the_log_lines_say_what_the_run_waits_for(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await run_lines(FLOW)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    name = "order run r (key k): "
    waits = [line.removeprefix(name) for line in lines if "waits for" in line]
    assert waits == [
        "waits for the next attempt, for 5.000 s",
        "waits for a timer, for 90.000 s",
        "waits for approval review, for at most 3600.000 s",
        "waits for signal payment, for at most 60.000 s",
        "waits for a timer, for 2.000 s",
        "waits for signal late, for at most 30.000 s",
    ]
