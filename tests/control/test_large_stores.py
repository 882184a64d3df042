"""Each operation of the table on a large store: it reads a bounded number of records, and does not
hold the event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from keyrun import Context, Entity, Limits, Runtime, entity, step, workflow
from keyrun.control.table import OPERATIONS
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.testing import open_test_runtime
from tests.control.test_large_answers import MOST_HELD, Watch
from tests.control.world import Client, client_of
from tests.runtime.inspect.test_pages import MOST, CountingStore, count, ended_runs

MANY = 1800
"""Runs of each kind. Reading all of one kind takes more than `MOST` records."""
MORE = "limit=100000"


@step
async def add(number: int) -> int:
    return number


@workflow
async def long(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await ctx.step(add, number)


@workflow
async def wait(ctx: Context) -> None:
    await ctx.wait_signal("go")


@workflow
async def gated(ctx: Context) -> None:
    await ctx.approval("boss")


@workflow
async def parent(ctx: Context, children: int) -> None:
    await ctx.gather(*(ctx.child(wait, key=f"child-{each}") for each in range(children)))


@entity(name="Shelf")
class Shelf(Entity):
    async def fill(self, books: int) -> int:
        self.state["books"] = list(range(books))
        return books


ANYWHERE: dict[str, list[tuple[str, Any]]] = {
    "find_runs": [("/runs", None), (f"/runs?{MORE}", None), ("/runs?tag=nothing", None)],
    "status": [("/runs/parent", None), ("/runs/long", None), ("/runs/deep-1799", None)],
    "result": [("/runs/long/result", None)],
    "history": [("/runs/long/history", None), (f"/runs/parent/history?{MORE}", None)],
    "input": [("/runs/parent/input", None)],
    "progress": [("/runs/parent/progress", None), ("/runs/long/progress", None)],
    "explain": [("/runs/parent/explain", None), ("/runs/deep-1799/explain", None)],
    "family": [("/runs/parent/family", None), ("/runs/long/family", None)],
    "find_keys": [("/keys", None), (f"/keys?{MORE}", None)],
    "key_view": [("/keys/deep", None), (f"/keys/deep?{MORE}", None), ("/keys/shelf", None)],
    "explain_key": [("/keys/deep/explain", None)],
    "entities": [("/keys/shelf/entities", None)],
    "find_dead_letters": [("/dead-letters", None)],
    "dead_letter_errors": [("/dead-letters/errors", None)],
    "find_approvals": [("/approvals", None), (f"/approvals?{MORE}", None)],
    "workflows": [("/workflows", None)],
    "policies": [("/policies", None)],
    "audit": [(f"/audit?{MORE}", None), ("/audit?run_id=nothing", None)],
    "find_groups": [(f"/groups?{MORE}", None)],
    "find_schedules": [(f"/schedules?{MORE}", None)],
    "outbox": [("/outbox", None)],
    "recent_events": [("/recent-events", None)],
    "statistics": [("/statistics", None)],
    "overview": [("/overview", None)],
    "counts": [("/counts", None)],
    "bulk": [
        ("/bulk/cancel", {"workflow": "nothing"}),
        ("/bulk/approve", {"workflow": "gated", "gate": "boss", "by": "ann", "limit": 1000}),
        ("/bulk/pause", {"workflow": "gated", "limit": 100, "preview": False}),
    ],
    "submit": [("/runs", {"workflow": "wait", "key": "deep"})],
    "submit_many": [("/batches", {"runs": [{"workflow": "wait", "key": "deep"}] * 500})],
    "submit_or_signal": [
        (
            "/runs/deep-1000/submit-or-signal",
            {"workflow": "wait", "key": "deep", "name": "go"},
        )
    ],
    "signal": [("/runs/parent/signals/go", {}), ("/runs/deep-1799/signals/go", {})],
    "approve": [("/runs/gated-7/gates/boss/approve", {"by": "ann"})],
    "reject": [("/runs/gated-8/gates/boss/reject", {"by": "ann"})],
    "pause": [("/runs/parent/pause", {}), ("/runs/deep-1798/pause", {})],
    "resume": [("/runs/parent/resume", {})],
    "cancel": [("/runs/deep-1797/cancel", {})],
    "pause_key": [("/keys/deep/pause", {})],
    "resume_key": [("/keys/deep/resume", {})],
    "release_key": [("/keys/deep/release", {})],
    "call": [("/entities/Shelf/shelf/fill", {"args": [10]})],
    "pause_all": [("/pause", {})],
    "resume_all": [("/resume", {})],
    "schedule": [("/schedules/s", {"workflow": "wait", "key": "deep", "when": {"every": 60}})],
    "pause_schedule": [("/schedules/s/pause", {})],
    "resume_schedule": [("/schedules/s/resume", {})],
    "delete_schedule": [("/schedules/s", None)],
    "discard_outcomes": [("/outbox", None)],
}
"""The paths and bodies of requests, by operation."""

WHOLE = {
    "export": "is the whole history of a run",
    "group": "counts all members of a group",
    "outcomes": "streams the ends of all members of a group",
    "cancel_group": "cancels all members of a group",
    "submit_group": "submits all members of a group",
    "forget": "removes all records of a run",
    "redrive": "reads the whole journal of a run",
    "watch": "is a stream of what progress answers",
    "execution_graph": "is the whole graph of a run",
    "events": "is a stream, and reads no records",
}
"""Operations on one whole thing, with what they do. They read it in slices, and let other tasks run
between them."""


def test_each_operation_has_a_request_here_or_a_reason_to_have_none() -> None:
    routed = {name for name, each in OPERATIONS.items() if each.path}
    assert routed == ANYWHERE.keys() | WHOLE.keys()
    assert not ANYWHERE.keys() & WHOLE.keys()


async def fill(rt: Runtime) -> None:
    """Make a large store of one with many ended runs."""
    limits = Limits(max_iterations=100_000)
    await (await rt.submit(long, 3000, key="long", run_id="long", limits=limits)).result()
    await rt.call(Shelf, "shelf", Shelf.fill, MANY)
    await rt.submit(parent, 1000, key="parent", run_id="parent")
    async with trio.open_nursery() as nursery:
        for at in range(MANY):
            nursery.start_soon(partial(rt.submit, wait, key="deep", run_id=f"deep-{at}"))
            nursery.start_soon(partial(rt.submit, gated, key=f"g{at}", run_id=f"gated-{at}"))
    for at in range(300):
        await rt.submit_group(f"group-{at}", [Member(wait, key="m")])
        await rt.schedule(f"s{at}", wait, key="s", when=Every(86_400))
    await trio.sleep(1)


@asynccontextmanager
async def large() -> AsyncIterator[tuple[Client, CountingStore]]:
    store = CountingStore()
    await ended_runs(store, 12_000)
    async with open_test_runtime(
        store, workflows=[count, long, wait, gated, parent], entities=[Shelf]
    ) as rt:
        await fill(rt)
        yield client_of(rt), store


async def ask(client: Client, name: str, target: str, body: Any) -> float:
    """Send a request, and return how long it has held the loop."""
    watch = Watch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.lowlevel.checkpoint()
        answer = await client.call(OPERATIONS[name].verb, f"/v1{target}", body)
        nursery.cancel_scope.cancel()
    assert answer.status in (200, 409), (target, answer.body)
    return watch.longest


async def test_no_request_reads_more_than_a_page_or_holds_the_loop(autojump_clock: Any) -> None:
    too_much: dict[str, Any] = {}
    async with large() as (client, store):
        for name, requests in ANYWHERE.items():
            for target, body in requests:
                # The first request makes what is derived from the types of the answer.
                held = await ask(client, name, target, body)
                store.read = 0
                held = min(held, await ask(client, name, target, body))
                if store.read >= MOST or held >= MOST_HELD:
                    too_much[target] = (store.read, held)
    assert too_much == {}
