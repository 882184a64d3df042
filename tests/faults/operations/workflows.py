"""The workflows of random operations. Each logs when its steps begin and complete."""

from typing import Any

import trio

from keyrun import Compensation, Context, PermanentError, Workflow, current_step, step, workflow
from tests.faults.operations.evidence import current
from tests.faults.operations.script import Run


@step(timeout=None)
async def work(name: str, seconds: float) -> str:
    with current.evidence.step(name):
        current_step().state["last"] = name
        await trio.sleep(seconds)
    return name


@step
async def fragile(name: str) -> str:
    with current.evidence.step(name):
        if current.evidence.sick:
            raise PermanentError("sick")
    return name


async def unbook(given: Compensation) -> None:
    await trio.sleep(0.3)
    current.evidence.effect("undo", given.output)


@step(compensate=unbook)
async def book(name: str) -> str:
    with current.evidence.step(name):
        await trio.sleep(0.2)
    return name


async def _steps(ctx: Context) -> Any:
    return [await ctx.step(work, name, 0.4) for name in "abc"]


async def _naps(ctx: Context) -> Any:
    first = await ctx.step(work, "a", 0.2)
    await ctx.sleep(2)
    return [first, await ctx.step(work, "b", 0.2)]


async def _waits(ctx: Context) -> Any:
    await ctx.step(work, "a", 0.2)
    first = await ctx.wait_signal("go")
    await ctx.step(work, "b", 0.2)
    return [first, await ctx.wait_signal("go")]


async def _gate(ctx: Context) -> Any:
    await ctx.step(work, "a", 0.2)
    approval = await ctx.approval("gate")
    await ctx.step(work, "b", 0.2)
    return approval.by


async def _dies(ctx: Context) -> Any:
    return [await ctx.step(work, "a", 0.2), await ctx.step(fragile, "b")]


async def _trip(ctx: Context) -> Any:
    await ctx.step(book, "a")
    await ctx.step(book, "b")
    await ctx.sleep(1)
    raise PermanentError("the trip is off")


async def _tour(ctx: Context) -> Any:
    await ctx.step(book, "a")
    first = await ctx.wait_signal("go")
    await ctx.step(book, "b")
    return [first]


BRITTLE = "-brittle"
"""At the end of the names of workflows that contradict their journals when they are broken."""
KINDS = {
    "steps": _steps,
    "naps": _naps,
    "waits": _waits,
    "gate": _gate,
    "dies": _dies,
    "trip": _trip,
    "tour": _tour,
    "polite": _waits,
}
EXPECTED = {"steps": ["a", "b", "c"], "naps": ["a", "b"], "dies": ["a", "b"]}
SIGNALS = {"waits": 2, "polite": 2, "tour": 1}
"""How many signals a run takes until it ends."""


def _flow(kind: str, brittle: bool) -> Workflow[Any, Any]:
    async def flow(ctx: Context, run_id: str) -> Any:
        if brittle and current.evidence.broken:
            return "early"
        return await KINDS[kind](ctx)

    name = kind + (BRITTLE if brittle else "")
    while_waiting: Any = "yield" if kind == "polite" else "hold"
    made: Workflow[Any, Any] = workflow(name=name, while_waiting=while_waiting)(flow)
    return made


WORKFLOWS: dict[str, Workflow[Any, Any]] = {
    flow.name: flow
    for flow in (_flow(kind, brittle) for kind in KINDS for brittle in (False, True))
}


def workflow_of(run: Run) -> Workflow[Any, Any]:
    """The workflow that a run is submitted with."""
    return WORKFLOWS[run.kind + (BRITTLE if run.brittle else "")]
